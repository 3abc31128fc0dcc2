"""The figures and the health of `queued web`, apart from its public pages."""

from __future__ import annotations

from importlib.metadata import version

from pgmta.config.metrics import MetricsPage
from pgmta.daemon_role import WEB
from pgmta.metrics.exposition import build_values, page, process_values
from pgmta.metrics.metrics_server import MetricsServer
from pgmta.metrics.series import Values
from pgmta.postgres.resources import Resources
from queued.process.queued_series import WEB as CATALOGUE
from queued.web.doors import Doors
from queued.web.readiness import Readiness
from queued.web.site import Site


class WebPage:
    """Reads plain numbers. Health is that of /ready, and `stopping`."""

    def __init__(
        self,
        settings: MetricsPage,
        site: Site,
        doors: Doors,
        resources: Resources,
        readiness: Readiness,
    ) -> None:
        self._site = site
        self._doors = doors
        self._resources = resources
        self._readiness = readiness
        self._stopping = False
        self._server = MetricsServer(settings, self.scrape, self.problem)

    async def serve(self) -> None:
        """Answer from now on. Raises ConfigError."""
        await self._server.start()

    def begin_stop(self) -> None:
        """Say from now on that the process ends."""
        self._stopping = True

    async def stop(self) -> None:
        """End the server."""
        await self._server.stop()

    async def problem(self) -> str:
        """Return why no request can be done now; '' if it can."""
        return "queued web stops" if self._stopping else await self._readiness.problem()

    async def scrape(self) -> bytes:
        """Return the page for Prometheus."""
        problem, seen = await self.problem(), self._site.figures
        states = self._resources.states()
        values: Values = {
            "pgmta_web_responses_total": {k: float(n) for k, n in seen.responses.items()},
            "pgmta_web_response_seconds": {(): seen.seconds.value},
            "pgmta_web_connections_open": {(): float(self._doors.number)},
            "pgmta_database_connections": {(n,): float(v) for n, v in states.items()},
        }
        values |= build_values(WEB.name, version("pgmta"), ready=not problem)
        return page(CATALOGUE, values | process_values())
