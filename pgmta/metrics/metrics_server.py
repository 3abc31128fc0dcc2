"""The HTTP server for figures and health: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST

from pgmta.config.metrics import MetricsPage
from pgmta.errors import ConfigError
from pgmta.logs import get

log = get("metrics")

type Scrape = Callable[[bool], Awaitable[bytes]]
"""Returns the page of figures. The argument says whether the daemon serves."""

type Problem = Callable[[], Awaitable[str]]
"""Returns why the daemon does not serve; '' if it does."""


_MOST = 32  # connections: each takes a descriptor, which deliveries need
_FIRST = 10.0  # seconds for the first request of a connection


class _OneTooMany(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


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
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}  # without a whole request yet
        self._listening: asyncio.Server | None = None
        application = web.Application(middlewares=[self._note])
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
        self._listening = await asyncio.get_running_loop().create_server(self._connect, sock=sock)
        log.info("metrics", listen=str(place))

    def begin_stop(self) -> None:
        """Say from now on that the daemon stops."""
        self._stopping = True

    async def stop(self) -> None:
        """End all connections, and the server."""
        if self._listening:
            self._listening.close()
        await self._runner.cleanup()

    def _connect(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        server = self._runner.server
        if server is None or len(server.connections) >= _MOST:
            return _OneTooMany()
        connection = server()
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(_FIRST, self._end_silent, connection)
        return connection

    def _end_silent(self, connection: RequestHandler) -> None:
        del self._silent[connection]
        if connection.transport:
            connection.transport.abort()

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if timer := self._silent.pop(request.protocol, None):
            timer.cancel()
        return await handler(request)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = await self._scrape(not await self._reason())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = await self._reason()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    async def _reason(self) -> str:
        return f"{self._name} stops" if self._stopping else await self._problem()
