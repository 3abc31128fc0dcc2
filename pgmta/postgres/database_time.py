"""The clock of PostgreSQL, without a question: all times that decide over mail are of it."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

_DRIFT_S_PER_S = 0.001  # by which the clock of the database and ours may drift apart
_LATEST_SHARE = 0.2  # of the last answer in the mean round trip


class DatabaseTime:
    """Learns how far the monotonic clock of this process is ahead, from answers of the database.

    An answer that was long under way says little: the bounds of earlier ones count too, and only
    become wider. Once they contradict an answer, a clock was set, and that answer alone counts.
    """

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf
        self._seen = 0.0
        self.known = False
        """Whether there was an answer."""
        self.ahead = 0.0
        """The seconds by which the monotonic clock is ahead, about."""
        self.trip_s = 0.0
        """The mean time of an answer."""

    def see(self, asked: float, answered: float, present: float) -> None:
        """Learn that the database's clock said `present` between two times of ours."""
        wider = _DRIFT_S_PER_S * (answered - self._seen)
        low, high = asked - present, answered - present
        if low > self._high + wider or high < self._low - wider:
            self._low, self._high = low, high
        else:
            self._low = max(self._low - wider, low)
            self._high = min(self._high + wider, high)
        self.known, self.ahead = True, (self._low + self._high) / 2
        trip = answered - asked
        self.trip_s += (trip - self.trip_s) * (_LATEST_SHARE if self._seen else 1.0)
        self._seen = answered

    def now(self) -> datetime:
        """Return the time; until the first answer it is that of this host."""
        if not self.known:
            return datetime.now(UTC)
        return datetime.fromtimestamp(time.monotonic() - self.ahead, UTC)

    def find_moment(self, moment: datetime) -> float:
        """Return the time of the monotonic clock that a time of PostgreSQL is."""
        return time.monotonic() + (moment - self.now()).total_seconds()

    def uncertainty(self, now: float) -> float:
        """Return the seconds between the bounds after an answer that would come about now.

        A steady round trip leaves them as far apart as it takes: no number of answers helps.
        """
        apart = self._high - self._low
        return min(apart + 2 * _DRIFT_S_PER_S * (now - self._seen), max(apart, self.trip_s))

    def latest(self, moment: float) -> float:
        """Return the latest time of ours that a time of the database may be."""
        return moment + self._high

    def earliest(self, moment: float) -> float:
        """Return the earliest time of ours that it may be."""
        return moment + self._low
