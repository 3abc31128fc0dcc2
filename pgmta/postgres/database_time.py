"""The time of PostgreSQL, without a question: all times that decide over mail are of its clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pgmta.postgres.clock_bounds import ClockBounds


class DatabaseTime:
    """Learns the clock of PostgreSQL from answers; until the first one it is that of this host.

    When the clock was set, the next answer shows it.
    """

    def __init__(self) -> None:
        self._bounds = ClockBounds()

    def see(self, asked: float, answered: float, present: float) -> None:
        """Learn that the clock said `present` between two times of the monotonic clock."""
        self._bounds.see(asked, answered, present)

    def now(self) -> datetime:
        """Return the time."""
        if not self._bounds.known:
            return datetime.now(UTC)
        return datetime.fromtimestamp(time.monotonic() - self._bounds.ahead, UTC)

    def find_moment(self, moment: datetime) -> float:
        """Return the time of the monotonic clock that a time of PostgreSQL is."""
        return time.monotonic() + (moment - self.now()).total_seconds()
