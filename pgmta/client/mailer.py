"""The work of a client in its event loop: sending, status, waiting and cancelling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import batched
from math import isnan
from typing import Final

import psycopg

from pgmta.client.gatherer import Gatherer, explained, pauses, session_of
from pgmta.client.looks import Looks
from pgmta.client.mail_json import check_texts
from pgmta.client.parcels import CLOSED_REASON
from pgmta.client.results import RecipientStatus, Statuses
from pgmta.errors import LoginRefused, NotBegun, StoreUnavailable, Undecided
from pgmta.postgres.resources import Resources
from pgmta.store.changes.sql_interface import SqlInterface

_IDS_PER_QUESTION: Final = 10_000


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
        self._asks: set[asyncio.Future[None]] = set()  # calls under way
        self.put = self._gatherer.put
        """Takes a parcel; its future gets the results."""
        self._gatherer.start()

    async def status(self, ids: Iterable[int]) -> Statuses:
        """Return the recipients of each message. Raises StoreUnavailable, psycopg.Error."""
        wanted = message_ids(ids)
        found: Statuses = {number: [] for number in wanted}
        for some in batched(wanted, _IDS_PER_QUESTION):
            for number, *state in await self._ask(partial(self._interface.status, some)):
                found[number].append(RecipientStatus(*state))
        return found

    async def wait(self, ids: Iterable[int], timeout: float | None) -> Statuses:
        """Return the same once no state changes by itself any more, or at the timeout."""
        if self._closing:
            raise NotBegun(CLOSED_REASON)
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(f"timeout: give seconds or None, and not {type(timeout).__name__}")
        if timeout is not None and isnan(timeout):  # such a timeout would end the event loop
            raise ValueError("timeout: give seconds or None, and not nan")
        return await self._looks.wait(message_ids(ids), timeout)

    async def cancel(self, message_id: int, reason: str | None) -> int:
        """Stop recipients that are not delivered yet; return their number.

        Raises TypeError, ValueError, SubmissionError, StoreUnavailable, Undecided, psycopg.Error.
        """
        [number] = message_ids([message_id], "id")
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"reason: it has to be a text, and not {type(reason).__name__}")
        check_texts("reason", reason)
        return await self._ask(partial(self._interface.cancel, number, reason))

    async def close(self) -> None:
        """End the calls that were begun, and the connections. Each further call gets NotBegun."""
        if not self._closing:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._looks.close()
        await self._gatherer.close()
        if self._asks:
            await asyncio.wait(self._asks)
        await self._resources.close()

    async def _ask[T](self, call: Callable[[], Awaitable[T]]) -> T:
        if self._closing:
            raise NotBegun(CLOSED_REASON)
        ended = self.loop.create_future()
        self._asks.add(ended)
        try:
            return await repeated(call, time.monotonic() + self._patience)
        except psycopg.Error as error:
            if (reason := await explained(self._link, error)) is error:
                raise
            raise reason from error
        finally:
            self._asks.remove(ended)
            ended.set_result(None)


async def repeated[T](call: Callable[[], Awaitable[T]], until: float) -> T:
    """Return the answer of a call, which is repeated while PostgreSQL is away.

    It is so until that time of time.monotonic(). Raises StoreUnavailable, or Undecided if an
    answer was lost. Raises LoginRefused and psycopg.Error at once.
    """
    open_, breaks = False, pauses()
    while True:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await call()
        except TimeoutError:
            raise Undecided("PostgreSQL has not answered in time") from None
        except StoreUnavailable as error:
            open_ = open_ or isinstance(error, Undecided)
            pause = next(breaks)
            if isinstance(error, LoginRefused) or time.monotonic() + pause >= until:
                raise (Undecided if open_ else type(error))(str(error)) from error
        await asyncio.sleep(pause)


def message_ids(ids: Iterable[int], argument: str = "ids") -> Sequence[int]:
    """Return the ids in their order, each once. Raises TypeError, ValueError."""
    if not isinstance(ids, Iterable):
        raise TypeError(f"{argument}: give a list of message ids, and not {type(ids).__name__}")
    found = tuple(dict.fromkeys(ids))
    for each in found:
        if not isinstance(each, int) or isinstance(each, bool):
            raise TypeError(
                f"{argument}: a message id has to be a number, and not {type(each).__name__}"
            )
        if not 0 <= each < 2**63:
            raise ValueError(f"{argument}: a message id is a number from 0 to 2**63 - 1")
    return found
