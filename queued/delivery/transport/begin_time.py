"""The time at which a transaction has to begin, if its mail has a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LEAD = 0.01
"""Seconds before the time at which the mail comes to its destination, at least."""

LONGEST_LEAD = 0.04
"""The same, at most: a busy machine takes so long for the commit that mail with `once` needs."""

_EARLY = 0.001  # seconds: timers have whole milliseconds and may be early
_HELD = LONGEST_LEAD + 0.01  # seconds for which a connection waits for the time, at most


class BeginTime:
    """A reserved time for one transaction: it begins from `at` until `until`, or not at all.

    Both are of the monotonic clock. `give_back` is called if the mail comes too early or too late.
    """

    __slots__ = ("_at", "_until", "_used", "give_back")

    def __init__(self, at: float, until: float, give_back: Callable[[], None]) -> None:
        self._at = at
        self._until = until
        self._used = False
        self.give_back = give_back
        """Is called in place of a result: the transaction has not begun."""

    @property
    def delay(self) -> float | None:
        """Seconds until the time, 0.0 or less at it; None if it is lost or used."""
        now = time.monotonic()
        return None if self._used or now > self._until else self._at - now

    @property
    def soon(self) -> bool:
        """Whether a connection may wait for the time."""
        delay = self.delay
        return delay is not None and delay <= _HELD

    async def come(self) -> bool:
        """Wait for the time, and use it; return False if it is lost."""
        if (delay := self.delay) and delay > 0:
            await asyncio.sleep(delay + _EARLY)
        lost = self.delay is None
        self._used = True
        return not lost
