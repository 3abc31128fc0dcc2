"""The database as the sessions see it: quick enough for more mail, slow, or away."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pgmta.logs import get
from smtpd.config import Limits

_LOOK_INTERVAL_S = 0.25  # while mail comes
_IDLE_LOOK_INTERVAL_S = 1.0  # while no message waits for its commit

log = get("smtpd")


class TimedDatabase(Protocol):
    """The way into the database, as far as its speed is concerned."""

    @property
    def refuses(self) -> bool:
        """Whether PostgreSQL is away, and no message waits for it."""

    @property
    def lag(self) -> float:
        """Return the seconds for which the oldest complete message waits, or all for ids."""


class Gate:
    """Says before a transaction and before its content whether there is hope for a commit.

    Sessions look at two attributes, and a task looks at the database up to four times per second.
    """

    def __init__(self, limits: Limits, database: TimedDatabase) -> None:
        self._limits = limits
        self._database = database
        self.slow = False
        """Clients are to wait a second per transaction."""
        self.closed = False
        """Clients are to come again later."""

    async def watch_database(self) -> None:
        """Look until cancelled."""
        while True:
            self.look_once()
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        busy = self.closed or self._database.lag or self._limits.slow_commit < _IDLE_LOOK_INTERVAL_S
        return _LOOK_INTERVAL_S if busy else _IDLE_LOOK_INTERVAL_S

    def look_once(self) -> None:
        """Look once."""
        database, limits = self._database, self._limits
        lag = database.lag
        self.slow = lag > limits.slow_commit
        self._close(closed=database.refuses or lag > limits.late_commit, lag=lag)

    def _close(self, *, closed: bool, lag: float) -> None:
        if closed is not self.closed:
            self.closed = closed
            if closed:
                log.warning("no mail is taken until the database is quick again", lag=round(lag, 1))
            else:
                log.info("mail is taken again")
