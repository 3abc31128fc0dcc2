"""The loop of a delivering worker."""

from __future__ import annotations

import asyncio
import time

import psycopg

from queued.config.queued import Worker
from queued.errors import StoreUnavailable
from queued.logs import get
from queued.model import Item
from queued.store.claim import Claims
from queued.worker.dispatch import Dispatch
from queued.worker.lease import Leases

_BACKOFF = 0.5  # seconds, while PostgreSQL is away
_PACE = 10  # a search past busy destinations rests this many times as long as it took,
_PAUSE = 0.1  # and at least this many seconds

log = get("worker")


class Loop:
    """Claims while there is room; without mail it sleeps until a notification or the poll."""

    def __init__(
        self, config: Worker, inline: int, claims: Claims, leases: Leases, dispatch: Dispatch
    ) -> None:
        self.config = config
        self.inline = inline
        self._claims = claims
        self._leases = leases
        self._dispatch = dispatch
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._stopping = False
        self._search_after = 0.0
        self._away = False

    def wake(self) -> None:
        """There may be mail."""
        self._wake.set()

    def settled(self, item: Item) -> None:
        """A row's place is free again."""
        again = self._leases.drop(item)
        if again:
            self._dispatch.hand_back([again])
        self._room.set()

    def stop(self) -> None:
        """Claim nothing more; `run` returns when a claim under way has ended."""
        self._stopping = True
        self._wake.set()
        self._room.set()

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            self._room.clear()
            free = self.config.in_flight - len(self._leases)
            busy, held = self._dispatch.busy(free)
            if free < max(1, (self.config.in_flight - held) // 4):
                await self._room.wait()
                continue
            rest = self._search_after - time.monotonic()
            if busy and rest > 0:
                await _within(rest, self._room)
                continue
            want = min(self.config.batch, max(1, free // 2))
            self._wake.clear()
            before = time.monotonic()
            found = await self._try_claim(want, busy)
            if busy:
                # past the rows of busy destinations the claim has to search
                took = time.monotonic() - before
                self._search_after = time.monotonic() + max(_PAUSE, _PACE * took)
            elif found < want:
                await _within(self.config.poll, self._wake)

    async def _try_claim(self, want: int, busy: list[str]) -> int:
        try:
            found = await self._claim(want, busy)
        except (StoreUnavailable, psycopg.Error) as error:
            if not self._away:
                log.warning("can't claim", reason=str(error))
            self._away = True
            await asyncio.sleep(_BACKOFF)
            return want
        if self._away:
            log.info("database is back")
        self._away = False
        return found

    async def _claim(self, want: int, busy: list[str]) -> int:
        claimed = time.monotonic()
        items = await self._claims.claim(want, busy)
        if not items:
            return 0
        fresh = self._leases.add(items, claimed)
        try:
            ids = list({item.message_id for item in fresh})
            messages = await self._claims.messages(ids, self.inline)
        except BaseException:
            self._dispatch.hand_back(fresh)
            raise
        self._dispatch.dispatch(fresh, messages)
        return len(items)


async def _within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
