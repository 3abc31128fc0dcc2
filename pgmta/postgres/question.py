"""A question to PostgreSQL that is asked many times per second, for as little CPU as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from pgmta.postgres.link_connection import LinkConnection

_STATEMENT_NAME: Final = "pgmta_question"


class Question:
    """Asks one prepared question again and again over a connection that nothing else uses.

    It has no task and no timeout per answer: timer and socket call it, and it calls libpq. A
    question costs 0.4 of a statement by `Link` (docs/decisions/wake-up.md). No transaction is open
    between two questions. `pause` returns the seconds until the next question is due, 0.0 if it is
    now. `answered` gets the row of each answer, as text.
    """

    def __init__(
        self,
        connection: LinkConnection,
        pause: Callable[[], float],
        answered: Callable[[tuple[bytes, ...]], None],
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._socket = connection.pgconn.socket
        self._pause = pause
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False

    async def run(self, query: bytes) -> None:
        """Ask until cancelled. Raises psycopg.Error."""
        await self._connection.execute(f"PREPARE {_STATEMENT_NAME} AS ".encode() + query)
        # the first time by psycopg's execute(), which raises its errors; _tick() sends the others
        cursor = await self._connection.execute(f"EXECUTE {_STATEMENT_NAME}".encode())
        if row := await cursor.fetchone():
            self._answered(tuple(str(value).encode() for value in row))
        self._loop.add_reader(self._socket, self._readable)
        try:
            self._tick()
            await self._over
        finally:
            self._end(None)

    def _tick(self) -> None:
        try:
            if pause := self._pause():
                self._timer = self._loop.call_later(pause, self._tick)
            else:
                self._asked = True
                self._pgconn.send_query_prepared(_STATEMENT_NAME.encode(), None)
                self._pgconn.flush()
        except Exception as error:
            self._end(error)

    def _readable(self) -> None:
        try:
            # libuv reports an error only once, and the last octets of the server may be unread
            while not self._read() and self._connection.broken:
                pass
        except Exception as error:
            self._end(error)

    def _read(self) -> bool:
        """Read what came; return whether it ended an answer."""
        pgconn = self._pgconn
        pgconn.consume_input()
        while self._asked and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._asked = False
                self._tick()
                return True
            if result.status != ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
            fields = range(result.nfields)
            self._answered(tuple([result.get_value(0, field) or b"" for field in fields]))
        return False

    def _end(self, error: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        if self._socket >= 0:
            # at once: libpq may have closed the socket, and another may soon have its number
            self._loop.remove_reader(self._socket)
            self._socket = -1
        if error and not self._over.done():
            self._over.set_exception(error)
