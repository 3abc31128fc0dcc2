"""The servers of figures. Their modules have aiohttp, which takes 16 MB of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgmta.config.metrics import MetricsPage

if TYPE_CHECKING:
    from pgmta.http.server import HttpServer
    from pgmta.metrics.metrics_server import MetricsServer
    from queued.daemon.presence import Presence
    from queued.process.queued_process import QueuedProcess
    from queued.web.site import Site
    from queued.worker.kinds import Runner


async def serve_queued(
    process: QueuedProcess, presence: Presence, runners: Sequence[Runner]
) -> MetricsServer | None:
    """Return the server of a process of queued once it answers. Raises ConfigError."""
    settings = process.config.section(MetricsPage)
    if not settings.listen:
        return None
    from pgmta.metrics.metrics_server import MetricsServer
    from pgmta_features.metrics.queued_page import QueuedPage

    page = QueuedPage(process, presence, runners)
    server = MetricsServer("queued", settings, page.scrape, page.problem)
    await server.start()
    return server


async def serve_web(site: Site, servers: Sequence[HttpServer]) -> MetricsServer | None:
    """Return the server of `queued web` once it answers. Raises ConfigError."""
    settings = site.config.section(MetricsPage)
    if not settings.listen:
        return None
    from pgmta.metrics.metrics_server import MetricsServer
    from pgmta_features.metrics.web_page import WebPage

    page = WebPage(site, servers)
    found = MetricsServer("queued web", settings, page.scrape, site.readiness.problem)
    await found.start()
    return found
