"""The loop for urgent rows, which have reserved slots."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from pgmta.service import first
from pgmta.store.queue.claim import Claims
from queued.worker.claim_loop import ClaimContext, Claimer

_HEAD_START_S = 0.05  # in which the ordinary loop may claim first
_CONTENT_OCTETS = 4 << 20  # that come with a claim, however much content the other mail has
_MAX_KNOWN_AGE_S = 0.25  # afterwards new mail makes us ask again when the next row is due
_CROWDED_PAUSE_S = 1.0  # after a claim whose rows mostly found no room at their next hop


class UrgentLoop(Claimer):
    """Claims urgent rows that the ordinary loop can't: behind a backlog, or without free slots.

    While little is due the ordinary loop takes them first, and this one claims nothing. Its rows
    have the reserved `slots`. `ordinary` are the claims of the ordinary loop.
    """

    def __init__(self, slots: int, ordinary: Claims, context: ClaimContext, claims: Claims) -> None:
        super().__init__(context, claims, reserved=True)
        self._slots = slots
        self._ordinary = ordinary

    async def run(self) -> None:
        """Work until stopped."""
        busy: list[str] = []
        while not self._stopping:
            since = self.waits_since = time.monotonic()
            if notified := await self._notified(busy):
                # the ordinary loop may have begun its claim since it was woken with this one
                woken = self._delayed.at_once_at
                since = woken if woken > since else time.monotonic()
            self.waits_since = math.inf
            await asyncio.sleep(_HEAD_START_S)
            busy = []
            if self._ordinary.saw_all < since:
                began = time.monotonic()
                busy = await self._claim_all()
                if not (self._stopping or self.schedule.pause):
                    # the ordinary loop has other mail, and wakes for no urgent row
                    if notified:
                        self.due.forget(_MAX_KNOWN_AGE_S)
                    await self.due.ask_next(began)

    async def _notified(self, busy: list[str]) -> bool:
        """Wait for a notification, for the poll, or for room for rows that were left.

        Returns whether it was a notification.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self.schedule.due_in(self._context.poll)):
                while not self._woken.is_set():
                    self._freed.clear()
                    free = self._slots - len(self._leases.reserved)
                    if busy and free and not set(busy) <= set(self._exclusions.crowded(free)):
                        break
                    await (first(self._woken, self._freed) if busy else self._woken.wait())
                self._woken.clear()
                return True
        return False

    async def _claim_all(self) -> list[str]:
        """Claim until no more is due; return domains, '' for all others, that had no room left."""
        while not self._stopping:
            free = self._slots - len(self._leases.reserved)
            if not free:
                return [""]
            busy = self._exclusions.crowded(free)
            claimed = await self.claim(max(1, free // 2), busy, _CONTENT_OCTETS)
            if self.returned > claimed // 2:
                await asyncio.sleep(_CROWDED_PAUSE_S)
            if not claimed:
                return busy
        return []
