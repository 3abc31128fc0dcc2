"""Lines of the log about outages of the database, from what requests meet."""

from __future__ import annotations

import math
import time

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta_features.http_api.problem import Problem

_CALM_S = 10.0  # a lock stops some requests, each after seconds, and lets others pass

log = get("api")


class OutageLog:
    """Logs the begin and the end of an outage, however many requests it fails."""

    def __init__(self) -> None:
        self._began = -math.inf
        self._failed = -math.inf  # the last request
        self._away = False

    def note(self, problem: Problem) -> None:
        """Note that a request got a problem."""
        if problem.word != "database-away":
            return
        self._failed = time.monotonic()
        if not self._away:
            self._away, self._began = True, self._failed
            # those who raise it hide the reason from the client
            reason = problem.__cause__ or problem.__context__ or problem
            log.warning("database is away", reason=faults.one_line(reason))

    def answered(self) -> None:
        """Note that a request was answered."""
        if self._away and time.monotonic() >= self._failed + _CALM_S:
            self._away = False
            log.info("database is back", after_s=round(self._failed - self._began, 1))
