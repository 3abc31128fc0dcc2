"""The HTTP server for figures and health: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pgmta.config.metrics import MetricsPage
from pgmta.errors import ConfigError
from pgmta.http.page_server import PageServer
from pgmta.logs import get

log = get("metrics")

type Scrape = Callable[[bool], Awaitable[bytes]]
"""Returns the page of figures. The argument says whether the daemon serves."""

type Problem = Callable[[], Awaitable[str]]
"""Returns why the daemon does not serve; '' if it does."""


CONNECTION_S = 10.0
"""Time of a connection, with its request and the answer."""

_END_S = 5.0  # for answers that are due when the daemon stops


class MetricsServer:
    """Answers GET by what the daemon says at that moment. It knows neither tables nor figures.

    `name` is the command of the daemon.
    """

    def __init__(self, name: str, settings: MetricsPage, scrape: Scrape, problem: Problem) -> None:
        self._name = name
        self._settings = settings
        self._scrape = scrape
        self._problem = problem
        self._stopping = False
        self._listening: asyncio.Server | None = None
        self._pages: PageServer | None = None
        self._paths = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }

    async def start(self) -> None:
        """Bind the address, and answer from now on. Raises ConfigError."""
        place = self._settings.listen
        assert place  # noqa: S101 - for the type checker
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((place.host, place.port))
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            raise ConfigError([f"metrics.listen: cannot listen on {place}: {reason}"]) from None
        self._pages = PageServer(self._answer, "metrics", CONNECTION_S)
        self._listening = await asyncio.get_running_loop().create_server(self._pages, sock=sock)
        log.info("metrics", listen=str(place))

    def begin_stop(self) -> None:
        """Say from now on that the daemon stops."""
        self._stopping = True

    async def stop(self) -> None:
        """End all connections, and the server."""
        if self._listening:
            self._listening.close()
        if self._pages:
            await self._pages.shutdown(_END_S)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        page = self._paths.get(request.path)
        if not page:
            return web.Response(text=f"There are {', '.join(self._paths)}.\n", status=404)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        return await page()

    async def _metrics(self) -> web.Response:
        body = await self._scrape(not await self._reason())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self) -> web.Response:
        reason = await self._reason()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    async def _reason(self) -> str:
        return f"{self._name} stops" if self._stopping else await self._problem()
