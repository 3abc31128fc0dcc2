"""The work of a client in its event loop: sending, status, waiting and cancelling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import batched
from typing import Final

import psycopg

from pgmta.client.gatherer import Gatherer, explained, session_of
from pgmta.client.looks import Looks
from pgmta.client.parcels import CLOSED
from pgmta.client.results import RecipientStatus, Statuses
from pgmta.errors import LoginRefused, NotBegun, StoreUnavailable, SubmissionError, Undecided
from pgmta.mail.text import UNSTORABLE
from pgmta.postgres.resources import Resources
from pgmta.store.changes.sql_interface import SqlInterface

_IDS: Final = 10_000  # of a question
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before a call is repeated


class Mailer:
    """Does what a client is asked, in the event loop in which it is made."""

    def __init__(self, uri: str, connections: int, patience: float) -> None:
        self.loop = asyncio.get_running_loop()
        self._patience = patience
        self._resources = Resources(uri, "client")
        self._gatherer = Gatherer(self._resources, connections, patience)
        self._link = self._resources.link("side", session_of(patience))
        self._interface = SqlInterface(self._link)
        self._looks = Looks(self.status)
        self._closing: asyncio.Task[None] | None = None
        self.put = self._gatherer.put
        """Takes a parcel; its future gets the results."""
        self._gatherer.start()

    async def status(self, ids: Iterable[int]) -> Statuses:
        """Return the recipients of each message. Raises StoreUnavailable, psycopg.Error."""
        wanted = _ids(ids)
        found: Statuses = {number: [] for number in wanted}
        for some in batched(wanted, _IDS):
            for number, *state in await self._ask(partial(self._interface.status, some)):
                found[number].append(RecipientStatus(*state))
        return found

    async def wait(self, ids: Iterable[int], timeout: float | None) -> Statuses:
        """Return the same once no state changes by itself any more, or at the timeout."""
        if self._closing:
            raise NotBegun(CLOSED)
        return await self._looks.wait(_ids(ids), timeout)

    async def cancel(self, message_id: int, reason: str | None) -> int:
        """Stop recipients that are not delivered yet; return their number.

        Raises TypeError, ValueError, SubmissionError, StoreUnavailable, Undecided, psycopg.Error.
        """
        if not isinstance(reason, str | None):
            raise TypeError(f"reason: it has to be a text, and not {type(reason).__name__}")
        if reason and UNSTORABLE.search(reason):
            raise SubmissionError("reason", "it has NUL or half of a character")
        [number] = _ids([message_id])
        return await self._ask(partial(self._interface.cancel, number, reason))

    async def close(self) -> None:
        """End the calls that were begun, and the connections. Each further call gets NotBegun."""
        if not self._closing:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._looks.close()
        await self._gatherer.close()
        await self._resources.close()

    async def _ask[T](self, call: Callable[[], Awaitable[T]]) -> T:
        if self._closing:
            raise NotBegun(CLOSED)
        try:
            return await repeated(call, time.monotonic() + self._patience)
        except psycopg.Error as error:
            if (reason := await explained(self._link, error)) is error:
                raise
            raise reason from error


async def repeated[T](call: Callable[[], Awaitable[T]], until: float) -> T:
    """Return the answer of a call, which is repeated while PostgreSQL is away.

    It is so until that time of time.monotonic(). Raises StoreUnavailable, or Undecided if an
    answer was lost. Raises LoginRefused and psycopg.Error at once.
    """
    pause, open_ = 0.0, False
    while True:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await call()
        except TimeoutError:
            raise Undecided("PostgreSQL has not answered in time") from None
        except LoginRefused as error:
            failure: StoreUnavailable = error
            pause = float("inf")
        except StoreUnavailable as error:
            failure = error
            open_ = open_ or isinstance(error, Undecided)
        if time.monotonic() + pause >= until:
            raise (Undecided if open_ else type(failure))(str(failure)) from failure
        await asyncio.sleep(pause)
        pause = min(pause * 2 or _PAUSE, _LONGEST_PAUSE)


def _ids(ids: Iterable[int]) -> Sequence[int]:
    """Return the ids in their order, each once. Raises TypeError, ValueError."""
    found = tuple(dict.fromkeys(ids))
    for each in found:
        if not isinstance(each, int) or isinstance(each, bool):
            raise TypeError(f"ids: a message id has to be a number, and not {type(each).__name__}")
        if not -(2**63) <= each < 2**63:
            raise ValueError("ids: a message id has at most 64 bits")
    return found
