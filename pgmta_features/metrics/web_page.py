"""The figures of `queued web`, apart from its public pages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from pgmta.http.server import HttpServer
from pgmta.metrics.exposition import build_values, page, process_values
from pgmta.metrics.series import Values
from pgmta_features.metrics.queued_series import WEB_SERIES as CATALOGUE
from queued.web.site import Site


class WebPage:
    """Reads plain numbers."""

    def __init__(self, site: Site, servers: Sequence[HttpServer]) -> None:
        self._site = site
        self._servers = servers

    async def scrape(self, ready: bool) -> bytes:
        """Return the page for Prometheus."""
        seen = self._site.figures
        states = self._site.resources.states()
        values: Values = {
            "pgmta_web_responses_total": {k: float(n) for k, n in seen.responses.items()},
            "pgmta_web_response_seconds": {(): seen.seconds.value},
            "pgmta_web_connections_open": {(): float(sum(each.number for each in self._servers))},
            "pgmta_database_connections": {(n,): float(v) for n, v in states.items()},
        }
        values |= build_values(self._site.config.role.name, version("pgmta"), ready=ready)
        return page(CATALOGUE, values | process_values())
