"""The figures and the health of one smtpd: those of its processes together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

from pgmta.config.metrics import MetricsPage
from pgmta.metrics.exposition import build_values, page, process_values
from pgmta.metrics.metrics_server import MetricsServer
from pgmta.metrics.series import Values, add
from smtpd.process.keeper import Keeper
from smtpd.server.smtpd_series import CATALOGUE


class MasterPage:
    """Asks all processes, and sums. A process that has ended stays in the sums of counters."""

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self._keepers = keepers
        self._stopping = False

    async def serve(self, settings: MetricsPage) -> None:
        """Answer from now on. Raises ConfigError."""
        self._server = MetricsServer(settings, self.scrape, self.problem)
        await self._server.start()

    def begin_stop(self) -> None:
        """Say from now on that the master ends its processes."""
        self._stopping = True

    async def stop(self) -> None:
        """End the server."""
        await self._server.stop()

    async def scrape(self) -> bytes:
        """Return the page for Prometheus."""
        problem = await self.problem()
        total: Values = {}
        for keeper in self._keepers:
            add(total, keeper.past)
            for pipe in keeper.pipes:
                add(total, pipe.values)
        add(total, process_values())
        total |= build_values("smtpd", version("pgmta"), ready=not problem)
        return page(CATALOGUE, total)

    async def problem(self) -> str:
        """Return why no process takes mail; '' if one does."""
        if self._stopping:
            return "smtpd stops"
        pipes = [pipe for keeper in self._keepers for pipe in keeper.pipes]
        await asyncio.gather(*(pipe.ask() for pipe in pipes))
        problems = [pipe.problem for pipe in pipes if pipe.values]
        if not problems:
            return "no process serves"
        return "" if "" in problems else problems[0]
