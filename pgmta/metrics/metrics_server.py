"""The HTTP server for figures and health: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pgmta.config.metrics import MetricsPage
from pgmta.errors import ConfigError
from pgmta.http.answers import TEXT_TYPE, HttpAnswers
from pgmta.http.route import HttpLimits, Route
from pgmta.http.server import HttpServer, bind
from pgmta.http.site import HttpSite
from pgmta.logs import get

log = get("metrics")

type Scrape = Callable[[bool], Awaitable[bytes]]
"""Returns the page of figures. The argument says whether the daemon serves."""

type Problem = Callable[[], Awaitable[str]]
"""Returns why the daemon does not serve; '' if it does."""


CONNECTION_S = 10.0
"""Time of a connection, with its request and the answer."""

MAX_CONNECTIONS = 32
"""Each takes a descriptor, which deliveries need."""

_END_TIMEOUT_S = 5.0  # for answers that are due when the daemon stops


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
        self._answers = HttpAnswers()
        self._server: HttpServer | None = None

    async def start(self) -> None:
        """Bind the address, and answer from now on. Raises ConfigError."""
        place = self._settings.listen
        assert place  # noqa: S101 - for the type checker
        try:
            bound = bind(place.host, place.port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError([f"metrics.listen: cannot listen on {place}: {reason}"]) from None
        routes = (
            Route("GET", "/metrics", self._metrics),
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._readyz),
        )
        site = HttpSite(routes, HttpLimits(MAX_CONNECTIONS, CONNECTION_S), self._answers)
        self._server = HttpServer("metrics")
        await self._server.serve(site)
        await self._server.listen(bound)
        log.info("metrics", listen=str(place))

    def begin_stop(self) -> None:
        """Say from now on that the daemon stops."""
        self._stopping = True

    async def stop(self) -> None:
        """End all connections, and the server."""
        if self._server:
            await self._server.stop(_END_TIMEOUT_S)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = await self._scrape(not await self._reason())
        return self._answers.make(body, CONTENT_TYPE_LATEST)

    async def _healthz(self, _: web.Request) -> web.Response:
        return self._answers.make(b"alive\n", TEXT_TYPE)

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = await self._reason()
        return self._answers.make(
            f"{reason or 'ready'}\n".encode(), TEXT_TYPE, 503 if reason else 200
        )

    async def _reason(self) -> str:
        return f"{self._name} stops" if self._stopping else await self._problem()
