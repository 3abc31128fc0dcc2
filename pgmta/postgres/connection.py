"""A connection to PostgreSQL that reads long answers with few turns of the event loop."""

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
    """psycopg's, with a shorter way of waiting for an answer.

    psycopg wakes the caller's task, sets a timer and registers the socket anew for all that the
    server sends in one go, which is 8 KB. Here the socket's callback takes it itself, and the task
    wakes once, when the answer is complete (docs/decisions/0013 has the figures).
    """

    backend: Backend

    @property
    def broken(self) -> bool:
        """Whether the server has gone, as far as can be told while no statement is under way."""
        return self.closed or _broken(self.pgconn.socket)

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run the generator of a statement to its end and return what it returns."""
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        try:
            state = next(gen)
        except StopIteration as end:
            # a generator that never waits: psycopg sees to it that others get their turn
            return await super().wait(_ended(end.value), interval)
        if state != Wait.R:
            return await super().wait(_from(gen, state), interval)
        try:
            state, value = await self._read(gen)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._give_up(gen)
            raise
        return value if state is None else await super().wait(_from(gen, state), interval)

    async def _read(self, gen: Work) -> tuple[Any, Any]:
        """Advance the generator whenever there is something to read.

        Returns None and its value at its end, or what else it wants to wait for.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, Any]] = loop.create_future()

        def readable() -> None:
            if done.done():  # cancelled a moment ago
                return
            state = value = None
            failure: BaseException | None = None
            try:
                state = gen.send(Ready.R)
                while state == Wait.R and _broken(number):
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

        number = self.pgconn.socket
        loop.add_reader(number, readable)
        try:
            return await done
        finally:
            if done.cancelled():
                loop.remove_reader(number)

    async def _give_up(self, gen: Work) -> None:
        """Have the server end the statement, or else close the connection."""
        try:
            await self.cancel_safe(timeout=_CANCEL)
            await super().wait(gen, timeout=_CANCEL)
        except pg_errors.QueryCanceled:
            pass
        except Exception:  # in place of which the cancellation goes on
            self.pgconn.finish()
        except BaseException:
            self.pgconn.finish()
            raise


def _broken(number: int) -> bool:
    """Whether the server has closed the connection or reset it.

    libuv tells of an error only once, and the last words of the server may stand before it.
    """
    look = select.poll()
    look.register(number, select.POLLRDHUP)
    return bool(look.poll(0))


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
