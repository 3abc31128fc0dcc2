"""Moments before which all rows are committed (pure)."""

from __future__ import annotations

import math
from collections import deque

SLACK_S = 2.0  # by which a row's time may be before the number of its transaction
PASS_OVER_S = 10.0  # for which an open transaction holds the moment


class Ticks:
    """Knows a moment before which no row comes up any more, by the database's clock.

    A tick notes the time, and takes a number as a transaction that writes does. Each transaction
    with a later number writes later times. So once all transactions up to that number have ended,
    all rows of earlier times can be seen. A snapshot names those that are open; the upper end of
    one says nothing, because transactions above it may be open too.

    A transaction that is open for long is passed over: its rows may come up before the moment.
    """

    def __init__(self) -> None:
        self.moment = -math.inf
        """The moment, in seconds since 1970."""
        self.missed = False
        """Whether a transaction has ended that was passed over; a whole look sets it back."""
        self._ticks: deque[tuple[int, float]] = deque()  # number and time of those to come
        self._since: dict[int, float] = {}  # open transactions, and when they were first seen
        self._last = 0, -math.inf  # number and time of the last tick

    @property
    def clock(self) -> float:
        """The time of the last tick."""
        return self._last[1]

    def see(self, clock: float, number: int, snapshot: str) -> bool:
        """Take the answer to a tick; its snapshot is older than its number.

        Returns False if a clock or numbers went back, for example after a promotion. Then no moment
        is known any more.
        """
        back = number <= self._last[0] or clock < self._last[1]
        self._last = number, clock
        if back:
            self.moment, self.missed = -math.inf, False
            self._ticks.clear()
            self._since.clear()
            return False
        _, high, running = snapshot.split(":")
        shown = {int(each) for each in running.split(",") if each}
        late = {each for each, since in self._since.items() if clock - since > PASS_OVER_S}
        self.missed |= not late <= shown
        self._since = {each: self._since.get(each, clock) for each in shown}
        first = min(shown - late, default=int(high))
        while self._ticks and self._ticks[0][0] < first:
            self.moment = self._ticks.popleft()[1] - SLACK_S
        self._ticks.append((number, clock))
        return True
