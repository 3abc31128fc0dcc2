"""The memory that the content of all sessions of a process may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pgmta.logs import get
from pgmta.postgres.outage import Outage

_LOOK_INTERVAL_S = 0.05  # as long as too much is held
_LOG_INTERVAL_S = 60.0
_RELIEVED_SHARE = 0.75  # of the budget; sessions are relieved until no more is used

log = get("smtpd")

type Relieve = Callable[[], bool]
"""Has no more read from a client until its content has been written ahead, if it can be."""


class Memory:
    """Counts the octets that connections hold: content under way, and input read ahead.

    Over the budget, smtpd stops reading from the connections that hold most, until their content is
    in the database. In an outage that is not possible, and no content is read.
    """

    def __init__(self, budget: int, outage: Outage | None = None) -> None:
        self._budget = budget
        self._outage = outage
        self._held: dict[Relieve, int] = {}
        self._look: asyncio.Handle | None = None
        self._logged = -_LOG_INTERVAL_S
        self.used = 0
        self.scarce = False
        """Whether content is to be read in turns only: half of the budget is used."""

    def hold(self, relieve: Relieve, octets: int) -> None:
        """Note how many octets the connection holds that `relieve` is for."""
        self.used += octets - self._held.pop(relieve, 0)
        if octets:
            self._held[relieve] = octets
        self.scarce = self.used * 2 > self._budget
        if self.over and not self._look:
            self._look = asyncio.get_running_loop().call_soon(self._relieve)

    @property
    def over(self) -> bool:
        """Return whether more is held than the budget."""
        return self.used > self._budget

    @property
    def stuck(self) -> bool:
        """Whether more is held than the budget, and an outage keeps it there for a while."""
        return self.over and self._outage is not None and self._outage.waits

    def _relieve(self) -> None:
        self._look = None
        excess = self.used - _RELIEVED_SHARE * self._budget
        for relieve, held in sorted(self._held.items(), key=lambda each: each[1], reverse=True):
            if excess <= 0:
                break
            if relieve():
                excess -= held
        now = time.monotonic()
        if now >= self._logged + _LOG_INTERVAL_S:
            log.warning("sessions wait for memory", octets=self.used, limit=self._budget)
            self._logged = now
        if self.used > self._budget:
            self._look = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._relieve)
