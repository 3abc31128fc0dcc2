"""Figures of tokens whose mail is not made, each 10 s if the process has a page."""

from __future__ import annotations

from pgmta.metrics.series import MoreFigures, Series, Values
from pgmta.store.queries import feature_queries
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty

SERIES = (
    Series("pgmta_queued_tokens_waiting", "gauge",
           "Tokens whose mail is not made, counted each 10 s."),
    Series("pgmta_queued_tokens_oldest_seconds", "gauge", "Age of the oldest of them."),
)  # fmt: skip
"""The same at each queued with a page."""

_INTERVAL_S = 10.0
_SQL = feature_queries("lifecycle")


class Backlog:
    """Reads the figures from an index: a count of 100,000 takes some milliseconds."""

    def __init__(self, process: QueuedProcess) -> None:
        self._process = process
        self._values: Values = {}
        process.more_figures.append(MoreFigures(SERIES, lambda: self._values))

    async def do(self) -> None:
        """Read them, if this process has a page. Raises StoreUnavailable, psycopg.Error."""
        if not self._process.queue_figures.wanted:
            return
        ((there,),) = await self._process.link.run(_SQL["installed"])
        if there:
            ((number, seconds),) = await self._process.link.run(_SQL["backlog"])
            values = zip(SERIES, (float(number), seconds), strict=True)
            self._values = {series.name: {(): value} for series, value in values}


DUTY = Duty("waiting tokens", _INTERVAL_S, lambda process: Backlog(process).do)
