"""Wakes a loop at the time of the next attempt of a row, and not at the next poll."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.store.queue.claim import Claims

_TIMER_DELAY_S = 0.001  # a claim before the time would find nothing
_WAKE_INTERVAL_S = 0.05  # rows that become due in it share a claim


class DueTimer:
    """Knows when the next row becomes due that a loop may claim, and calls `wake` then.

    A loop that goes idle asks for the earliest such row before its next poll. It asks again after
    that time. The settler adds the first deferral of a batch. Each row wakes a loop once at most.
    So a row that the loop may not claim costs one claim.
    """

    def __init__(self, claims: Claims, poll: float, wake: Callable[[], object]) -> None:
        self._claims = claims
        self._poll = poll
        self._wake = wake
        self.known = 0.0
        """Until then, by the monotonic clock, the time of the next row is known."""
        self._asked = 0.0
        self._at = math.inf  # time when the timer ends
        self._timer: asyncio.TimerHandle | None = None
        self._free = 0.0  # earliest time when the timer may end again

    async def ask_next(self, claimed: float) -> None:
        """Ask the database for the next row, unless the answer is known.

        Rows count that became due after the last claim, which began at `claimed` by the monotonic
        clock.
        """
        now = time.monotonic()
        if now < self.known:
            return
        self._asked, self.known = now, now + self._poll
        try:
            seconds = await self._claims.next_due(now - claimed, self._poll)
        except (StoreUnavailable, psycopg.Error):
            return  # claims log the same, and the poll goes on
        if seconds is not None:
            self.start(seconds)
            self.known = self._at

    def forget(self, age: float = 0.0) -> None:
        """Have the next `look` ask again: there may be new rows that are not due yet.

        An answer that is not `age` seconds old is kept until then, and the loop is woken to ask.
        """
        until = self._asked + age
        if until < self.known:
            self.known = until
            if (seconds := until - time.monotonic()) > 0:
                self.start(seconds)

    def start(self, seconds: float) -> None:
        """Wake the loop in that time, unless it is woken before."""
        now = time.monotonic()
        at = max(now + max(0.0, seconds) + _TIMER_DELAY_S, self._free)
        if at >= self._at:
            return
        self.stop()
        self._at = at
        self._timer = asyncio.get_running_loop().call_later(at - now, self._over)

    def stop(self) -> None:
        """End the timer."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._at = math.inf

    def _over(self) -> None:
        self._timer, self._at = None, math.inf
        self._free = time.monotonic() + _WAKE_INTERVAL_S
        self.known = 0.0
        self._wake()
