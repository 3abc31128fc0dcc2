"""The loop for urgent rows, which have places of their own."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from pgmta.service import first
from pgmta.store.claim import Claims
from queued.config import Worker
from queued.worker.dispatch import Dispatch
from queued.worker.lease import Leases
from queued.worker.loop import Loop, Outage
from queued.worker.rota import Rota

_AFTER = 0.05  # seconds in which the ordinary loop may look before this one does
_BUDGET = 4 << 20  # octets of content that come with a claim, however much the other mail holds
_REST = 1.0  # seconds without a look after one whose rows mostly found no room at their next hop


class UrgentLoop(Loop):
    """Claims urgent rows that the ordinary loop can't: behind a backlog, or without free places.

    While little is due the ordinary loop takes them first anyway, and this one asks nothing.
    `claims` are of urgent rows only, `ordinary` those of the ordinary loop; rows go to `places`
    of their own.
    """

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
        ordinary: Claims,
        places: int,
    ) -> None:
        super().__init__(config, poll, inline, claims, leases, dispatch, rota, outage)
        self._ordinary = ordinary
        self._places = places
        self._back = 0  # rows of the last claim that found no room
        self.ended = asyncio.Event()

    def freed(self) -> None:
        """Some row has been settled."""
        self._room.set()

    async def run(self) -> None:
        """Work until stopped; then `ended` is set, and it waits to be cancelled."""
        try:
            await self._work()
        finally:
            self.ended.set()
        await asyncio.Event().wait()

    async def _work(self) -> None:
        busy: list[str] = []
        while not self._stopping:
            since = time.monotonic()
            if await self._woken(busy):
                since = time.monotonic()
            await asyncio.sleep(_AFTER)
            busy = []
            if self._ordinary.saw_all < since:
                busy = await self._look()

    async def _woken(self, busy: list[str]) -> bool:
        """Wait for news, for the poll, or for room where rows were left; whether there is news."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rota.rest(self.poll)):
                while not self._wake.is_set():
                    self._room.clear()
                    free = self._free()
                    if busy and free and not set(busy) <= set(self._dispatch.crowded(free)):
                        break
                    await (first(self._wake, self._room) if busy else self._wake.wait())
                self._wake.clear()
                return True
        return False

    async def _look(self) -> list[str]:
        """Take what there is; return domains, and '' for all others, that had no room for more."""
        while not self._stopping:
            free = self._free()
            if not free:
                return [""]
            busy = self._dispatch.crowded(free)
            want = max(1, free // 2)
            found = await self._try_claim(want, busy)
            if self._back > found // 2:
                await asyncio.sleep(_REST)
            if not found:
                return busy
        return []

    def _free(self) -> int:
        return self._places - self._leases.reserved

    async def _claim(self, want: int, busy: list[str]) -> int:
        claimed = time.monotonic()
        self._back = 0
        claim = await self._claims.claim(want, busy, self.inline, _BUDGET, self._rota.overdue)
        if claim.items:
            fresh = self._leases.add(claim.items, claimed, reserved=True)
            self._back = self._dispatch.dispatch(fresh, claim.messages, reserved=True)
        return len(claim.items)
