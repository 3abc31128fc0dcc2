"""Counts the queue once per minute: one process does it, and those with a page read it."""

from __future__ import annotations

from collections.abc import Callable

from pgmta.store.admin.queue_counts import SETTINGS, QueueCounts
from queued.config import QueuedConfig
from queued.process.queue_figures import QueueFigures
from queued.process.queued_process import QueuedProcess
from queued.routing.routes import Routes
from queued.upkeep.duty import Duty, Work

_INTERVAL_S = 10.0  # the row of queue_counted says which process counts


class CountDuty:
    """Counts by the next hops of the present routes, unless another process just has.

    Routes of other processes may differ for a moment, while a new file is being read.
    """

    def __init__(
        self, counts: QueueCounts, config: Callable[[], QueuedConfig], figures: QueueFigures
    ) -> None:
        self._counts = counts
        self._config = config
        self._figures = figures

    async def do(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        config = self._config()
        routes = Routes(config.routes, config.routing)
        await self._counts.count(routes.next_hops, by_mail=routes.by_mail)
        if self._figures.wanted:
            self._figures.keep(await self._counts.read_counts())


def _make(process: QueuedProcess) -> Work:
    counts = QueueCounts(process.resources.link("counts", SETTINGS))
    return CountDuty(counts, lambda: process.config, process.queue_figures).do


DUTY = Duty("queue counts", _INTERVAL_S, _make)
