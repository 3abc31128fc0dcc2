"""The loop of a delivering worker."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import psycopg

from pgmta.errors import SchemaMismatch, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.service import first
from pgmta.store.claim import Claims
from queued.config import Worker
from queued.worker.dispatch import Dispatch
from queued.worker.lease import Leases
from queued.worker.rota import Rota

_BACKOFF = 0.5  # seconds, while PostgreSQL is away

log = get("worker")


class Outage:
    """Which loops of a worker can't claim; the log tells of the first and of the last."""

    def __init__(self) -> None:
        self._loops: set[Loop] = set()

    def __contains__(self, loop: Loop) -> bool:
        return loop in self._loops

    def begin(self, loop: Loop, reason: str) -> None:
        """The loop can't claim."""
        if not self._loops:
            log.warning("can't claim", reason=reason)
        self._loops.add(loop)

    def end(self, loop: Loop) -> None:
        """The loop has claimed."""
        if loop in self._loops:
            self._loops.remove(loop)
            if not self._loops:
                log.info("database is back")


class Loop:
    """Claims while there is room; without mail it sleeps until a notification or the poll."""

    def __init__(
        self,
        config: Worker,
        poll: float,
        inline: int,
        claims: Claims,
        leases: Leases,
        dispatch: Dispatch,
        rota: Rota,
        outage: Outage,
    ) -> None:
        self.config = config
        self.inline = inline
        self.poll = poll
        self.handled = 0
        self._claims = claims
        self._leases = leases
        self._dispatch = dispatch
        self._rota = rota
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._stopping = False
        self._limit: asyncio.Timeout | None = None  # of the claim under way
        self._outage = outage

    def wake(self) -> None:
        """There may be mail."""
        self._wake.set()

    def settled(self, item: Item) -> None:
        """A row's place is free again."""
        again = self._leases.drop(item)
        if again:
            self._dispatch.hand_back([again])
        self.handled += 1
        self._room.set()

    def stop(self) -> None:
        """Claim nothing more; `run` returns when a claim under way has ended."""
        self._stopping = True
        self._wake.set()
        self._room.set()

    def give_up(self) -> None:
        """End the claim under way; what it takes nevertheless is taken over when the lease ends."""
        if self._limit:
            self._limit.reschedule(0.0)

    async def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            self._room.clear()
            free = self._free()
            busy, held = self._dispatch.busy(free)
            if free < max(1, (self.config.concurrency - held) // 4):
                await self._room.wait()
                continue
            want = min(self.config.batch, max(1, free // 2))
            self._wake.clear()
            if await self._try_claim(want, busy) < want:
                await self._sleep(set(busy))

    async def _sleep(self, busy: set[str]) -> None:
        """Until there may be mail: a notification, the poll, or a destination free again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rota.rest(self.poll)):
                while not self._wake.is_set():
                    self._room.clear()
                    if busy and not busy <= set(self._dispatch.busy(self._free())[0]):
                        return
                    if busy:
                        await first(self._wake, self._room)
                    else:
                        await self._wake.wait()

    def _free(self) -> int:
        return self.config.concurrency - len(self._leases) + self._leases.reserved

    async def _try_claim(self, want: int, busy: list[str]) -> int:
        try:
            if self in self._outage:
                lost = await self._claims.abandon(self._leases.ids())
                if lost:
                    log.info("gave back rows of a claim whose answer was lost", rows=lost)
            found = await self._limited(want, busy)
        except TimeoutError:
            log.warning("a claim under way is given up", worker=self.config.name)
            return want
        except SchemaMismatch:  # logged by whoever finds it, and looked at again by the heartbeat
            await asyncio.sleep(_BACKOFF)
            return want
        except (StoreUnavailable, psycopg.Error) as error:
            self._outage.begin(self, str(error))
            await asyncio.sleep(_BACKOFF)
            return want
        self._outage.end(self)
        return found

    async def _limited(self, want: int, busy: list[str]) -> int:
        try:
            async with asyncio.timeout(None) as self._limit:
                return await self._claim(want, busy)
        finally:
            self._limit = None

    async def _claim(self, want: int, busy: list[str]) -> int:
        claimed = time.monotonic()
        claim = await self._claims.claim(
            want, busy, self.inline, self._dispatch.room, self._rota.overdue
        )
        if claim.items:
            fresh = self._leases.add(claim.items, claimed)
            self._dispatch.dispatch(fresh, claim.messages)
        return len(claim.items)
