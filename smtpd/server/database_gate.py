"""The database as the sessions see it: quick enough for more mail, slow, or away."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pgmta.logs import get
from smtpd.config import Limits

_LOOK_INTERVAL_S = 0.25  # while mail comes
_IDLE_LOOK_INTERVAL_S = 1.0  # while no message waits for its commit
_PROBE_PATIENCE_S = 0.2  # a probe that takes longer closes the gate
_PROBE_INTERVAL_S = 1.0  # of a database that is away

log = get("smtpd")


class TimedDatabase(Protocol):
    """The way into the database, as far as its speed is concerned."""

    @property
    def away(self) -> bool:
        """Whether the last commit failed because PostgreSQL could not do it."""

    @property
    def lag(self) -> float:
        """Return the seconds for which the oldest complete message waits, or all for ids."""

    async def probe(self) -> bool:
        """Return whether PostgreSQL takes mail again; then it is not away any more."""


class Gate:
    """Says before a transaction and before its content whether there is hope for a commit.

    Sessions look at two attributes, and a task looks at the database up to four times per second.
    While the gate is closed no commit tries the database, so a probe does.
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
            await self.look_once()
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        if self._database.away:
            return _PROBE_INTERVAL_S
        return (
            _LOOK_INTERVAL_S
            if self._database.lag or self._limits.slow_commit < _IDLE_LOOK_INTERVAL_S
            else _IDLE_LOOK_INTERVAL_S
        )

    async def look_once(self) -> None:
        """Look once; a database that is away is probed."""
        database, limits = self._database, self._limits
        if database.away:
            probe = asyncio.ensure_future(database.probe())
            try:
                if not (await asyncio.wait([probe], timeout=_PROBE_PATIENCE_S))[0]:
                    self._close(closed=True, lag=0.0)
                await probe
            finally:
                probe.cancel()
        lag = database.lag
        self.slow = lag > limits.slow_commit
        self._close(closed=database.away or lag > limits.late_commit, lag=lag)

    def _close(self, *, closed: bool, lag: float) -> None:
        if closed is not self.closed:
            self.closed = closed
            if closed:
                log.warning("no mail is taken until the database is quick again", lag=round(lag, 1))
            else:
                log.info("mail is taken again")
