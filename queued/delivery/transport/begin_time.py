"""The time at which a transaction has to begin, if its mail has a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LEAD_S = 0.01
"""Mail comes to its destination so long before its time, if a connection is open."""

_TIMER_SLACK_S = 0.001  # timers have whole milliseconds and may be early
_MAX_HELD_S = LEAD_S + 0.01  # for which a connection waits for the time


class BeginTime:
    """A reserved time for one transaction: it begins from `at` until `until`, or not at all.

    Both are of the monotonic clock. `noted` says that mail with `once` is marked as begun, without
    which it may not begin. `begun` is called when the transaction begins, and `give_back` if the
    mail came too early or too late.
    """

    __slots__ = ("_begun", "arrived", "at", "give_back", "noted", "until", "used")

    def __init__(
        self,
        at: float,
        until: float,
        noted: bool,
        begun: Callable[[], None],
        give_back: Callable[[], None],
    ) -> None:
        self.at = at
        self.until = until
        self.noted = noted
        self.used = False
        """Whether its transaction has begun."""
        self.arrived: float | None = None
        """When a connection took the mail."""
        self._begun = begun
        self.give_back = give_back
        """Is called in place of a result: the transaction has not begun."""

    def arrive(self) -> bool:
        """Note that a connection has the mail; return whether it may wait for the time."""
        self.arrived = now = time.monotonic()
        return self.noted and not self.used and self.at - _MAX_HELD_S <= now <= self.until

    async def come(self) -> bool:
        """Wait for the time, and use it; return False if it is lost."""
        now = time.monotonic()
        if now < self.at:
            await asyncio.sleep(self.at - now + _TIMER_SLACK_S)
            now = time.monotonic()
        if self.used or now > self.until:
            return False
        self.used = True
        self._begun()
        return True
