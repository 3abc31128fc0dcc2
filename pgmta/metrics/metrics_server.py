"""The HTTP server for figures and health: /metrics, /healthz and /readyz."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pgmta.config.metrics import MetricsPage
from pgmta.errors import ConfigError
from pgmta.logs import get

log = get("metrics")

type Scrape = Callable[[], Awaitable[bytes]]
"""Returns the page of figures."""

type Problem = Callable[[], Awaitable[str]]
"""Returns why the daemon does not serve; '' if it does."""


class MetricsServer:
    """Answers GET by what the daemon says at that moment. It knows neither tables nor figures."""

    def __init__(self, settings: MetricsPage, scrape: Scrape, problem: Problem) -> None:
        self._settings = settings
        self._scrape = scrape
        self._problem = problem
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> None:
        """Bind the address, and answer from now on. Raises ConfigError."""
        place = self._settings.listen
        assert place  # noqa: S101 - for the type checker
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        await self._runner.setup()
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((place.host, place.port))
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            raise ConfigError([f"metrics.listen: cannot listen on {place}: {reason}"]) from None
        await web.SockSite(self._runner, sock).start()
        log.info("metrics", listen=str(place))

    async def stop(self) -> None:
        """End all connections, and the server."""
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=await self._scrape(), headers=headers)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        problem = await self._problem()
        return web.Response(text=f"{problem or 'ready'}\n", status=503 if problem else 200)
