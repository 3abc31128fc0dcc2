"""A connection to PostgreSQL that reads a long answer with few turns of the event loop.

Undocumented parts of psycopg are used here and nowhere else: the method `AsyncConnection.wait` and
the generators that it runs, which yield states of `psycopg.waiting`. Checked with psycopg 3.3.9;
tests/pgmta/test_private_names.py fails when they change.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg import errors as pg_errors
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

from pgmta.errors import Backend

_CANCEL = 5.0  # seconds for the server to end a statement whose caller has gone

Work = Generator[Any, Any, Any]


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """psycopg's connection, with a shorter way of waiting for an answer.

    For every 8 KB from the server psycopg wakes the caller's task, sets a timer and registers the
    socket anew. Here the socket's callback reads them itself. The task wakes once, when the
    answer is complete (docs/decisions/0013 has the figures).
    """

    backend: Backend

    @property
    def broken(self) -> bool:
        """Whether the server has closed the connection or reset it.

        libuv reports an error only once, and the server's last octets may stand before it.
        """
        if self.closed:
            return True
        look = select.poll()
        look.register(self.pgconn.socket, select.POLLRDHUP)
        return bool(look.poll(0))

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run the generator of a statement to its end and return its value."""
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        try:
            state = next(gen)
        except StopIteration as end:
            # a generator that never waits: psycopg lets the other tasks run
            return await super().wait(_ended(end.value), interval)
        if state != Wait.R:
            return await super().wait(_from(gen, state), interval)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, Any]] = loop.create_future()
        number = self.pgconn.socket

        def readable() -> None:
            if done.done():  # cancelled a moment ago
                return
            state = value = failure = None
            try:
                state = gen.send(Ready.R)
                while state == Wait.R and self.broken:
                    state = gen.send(Ready.R)
                if state == Wait.R:
                    return
            except StopIteration as end:
                value = end.value
            except BaseException as error:
                failure = error
            # at once: libpq may have closed the socket, and its number soon belong to another
            loop.remove_reader(number)
            if failure:
                done.set_exception(failure)
            else:
                done.set_result((state, value))

        loop.add_reader(number, readable)
        try:
            state, value = await done
        except asyncio.CancelledError:
            if done.cancelled():
                loop.remove_reader(number)
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._give_up(gen)
            raise
        return value if state is None else await super().wait(_from(gen, state), interval)

    async def _give_up(self, gen: Work) -> None:
        """End the statement on the server, or else close the connection."""
        try:
            await self.cancel_safe(timeout=_CANCEL)
            await super().wait(gen, timeout=_CANCEL)
        except pg_errors.QueryCanceled:
            pass
        except Exception:  # the cancellation goes on instead
            self.pgconn.finish()
        except BaseException:
            self.pgconn.finish()
            raise


def _ended(value: Any) -> Work:
    """Return the value without ever waiting."""
    yield from ()
    return value


def _from(gen: Work, state: Any) -> Work:
    """Go on with a generator that wants to wait for `state`."""
    while True:
        try:
            state = gen.send((yield state))
        except StopIteration as end:
            return end.value
