"""The site: its address, its pages and what all parts of `queued web` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from pgmta.compose.token import KeyRings
from pgmta.http.answers import HTML_TYPE, JSON_TYPE, HttpAnswers, HttpError
from pgmta.http.route import HttpLimits, Route
from pgmta.http.server_connection import connection_of
from pgmta.http.site import HttpSite
from pgmta.postgres.link import Link
from pgmta.postgres.link_pool import LinkPool
from pgmta.postgres.resources import Resources
from pgmta.store.schema import Schema
from queued.web.clients import Clients
from queued.web.pages import Pages, stylesheet
from queued.web.readiness import Readiness
from queued.web.refusals import PageError
from queued.web.site_figures import SiteFigures
from queued.web.web_config import PAGES, Audience, WebConfig

_CSS_TYPE = "text/css; charset=utf-8"
_DATABASE_CONNECTIONS = 4  # that consume tokens
_MAX_CONNECTIONS = 2000
_IDLE_S = 60.0  # for which a kept connection may be silent
_HSTS_S = 2 * 365 * 86400  # for which browsers keep to https
_MESSAGES = {429: "limited", 503: "away", 404: "missing"}


class Served(Protocol):
    """What a process serves for a feature, as long as the process lives."""

    def routes(self) -> Sequence[Route]:
        """Return the routes under the site's present configuration, at the start and after SIGHUP.

        The paths are those behind `public.url`.
        """

    async def problem(self) -> str:
        """Return why it can't be served now; '' if it can. Raises StoreUnavailable, psycopg.Error.

        It is asked while the configuration has something to serve.
        """


async def _fits(_: Link) -> None:
    """Ask nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPart:
    """A feature's part of `queued web`, which the listeners of its audience serve.

    `begin` returns what a process serves. `is_used` says whether a configuration has anything for
    it, and `warnings` returns notes about that for the operator. `check` looks whether a login may
    do what is served, and raises psycopg.errors.InsufficientPrivilege. `folder` has the `templates`
    of the feature's pages, and their `texts` by language.
    """

    begin: Callable[[Site], Served]
    is_used: Callable[[WebConfig], bool]
    warnings: Callable[[WebConfig], list[str]] = lambda _: []
    check: Callable[[Link], Awaitable[None]] = _fits
    folder: Path | None = None


class Site:
    """What a process serves. Only POST changes anything: scanners and browsers follow links early.

    Its parts have their routes, and share the rest: `config` is the present configuration.
    """

    def __init__(self, config: WebConfig, uri: str, parts: Sequence[tuple[str, WebPart]]) -> None:
        self.resources = Resources(uri, config.role.name)
        self.schema = Schema()
        self.clients = Clients(config)
        self.tokens = LinkPool(self.resources, "tokens", _DATABASE_CONNECTIONS)
        """The connections that consume tokens."""
        self.figures = SiteFigures()
        """The responses so far."""
        self._style = stylesheet()
        self._pages = Pages(part.folder for _, part in parts if part.folder)
        served = config.audiences
        self._parts = [(name, part, part.begin(self)) for name, part in parts if name in served]
        self.readiness = Readiness(self.tokens, self.schema)
        self.configure(config)

    def configure(self, config: WebConfig) -> None:
        """Use another configuration from now on."""
        self.config, limits = config, config.limits
        self.rings = KeyRings.of(config.tokens)
        """The keys of tokens."""
        self.clients.configure(config)
        self.readiness.parts = [
            served.problem for _, part, served in self._parts if part.is_used(config)
        ]
        self.base = urlsplit(config.public.url).path
        """The path of public.url, which a proxy may take away."""
        self.answers = HttpAnswers(_headers(config.public.url))
        bounds = HttpLimits(
            _MAX_CONNECTIONS, limits.request, _IDLE_S, limits.body, limits.address_connections
        )
        routes = [(name, served.routes()) for name, _, served in self._parts]
        self.served = {
            each.audience: self._site_of(each.audience, routes, bounds) for each in config.listen
        }
        """What the listeners of each audience serve."""

    def _site_of(
        self, audience: Audience, routes: Sequence[tuple[str, Sequence[Route]]], bounds: HttpLimits
    ) -> HttpSite:
        own = [
            Route("GET", "/healthy", self._healthy),
            Route("GET", "/ready", self._ready),
        ]
        pages = PAGES in audience
        if pages:
            own.append(Route("GET", "/style.css", self._stylesheet, page=True))
        return HttpSite(
            [*own, *(each for name, some in routes if name in audience for each in some)],
            bounds,
            self.answers,
            self.base,
            self._page_of if pages else None,
            count=self.figures.count,
        )

    def client_of(self, request: web.Request) -> str:
        """Return the address of a client, which may be behind proxies."""
        fields = request.headers.getall("X-Forwarded-For", [])
        return self.clients.find_client(connection_of(request).peer, fields)

    def page(
        self,
        request: web.Request,
        name: str,
        status: int = 200,
        more: Mapping[str, str] | None = None,
        *,
        leads_to: str = "",
        **values: Any,
    ) -> web.StreamResponse:
        """Return a page in the language of the reader. `name` is that of its template.

        `leads_to` is a URL of another site to which the answer to its form redirects.
        """
        languages = ",".join(request.headers.getall("Accept-Language", []))
        page, headers = self._pages.render(name, languages, self.base, **values)
        headers = {**headers, "Content-Security-Policy": _policy(leads_to), **(more or {})}
        return self.answers.make(page, HTML_TYPE, status, headers)

    async def _healthy(self, _: web.Request) -> web.StreamResponse:
        return self.answers.make(b'{"status": "healthy"}', JSON_TYPE)

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        if reason := await self.readiness.problem():
            raise HttpError(503, reason, {"Retry-After": "5"})
        return self.answers.make(b'{"status": "ready"}', JSON_TYPE)

    async def _stylesheet(self, _: web.Request) -> web.StreamResponse:
        return self.answers.make(self._style, _CSS_TYPE)

    def _page_of(self, request: web.Request, error: HttpError) -> web.StreamResponse:
        usual = _MESSAGES.get(error.status, "wrong")
        message = error.message if isinstance(error, PageError) else usual
        return self.page(request, "message", error.status, error.headers, message=message)


def _headers(url: str) -> dict[str, str]:
    """Return the header fields that protect browsers."""
    found = {"Content-Security-Policy": _policy(), "Referrer-Policy": "no-referrer"}
    if url.startswith("https:"):
        found["Strict-Transport-Security"] = f"max-age={_HSTS_S}"
    return found


def _policy(leads_to: str = "") -> str:
    """Return the Content-Security-Policy of a page whose form leads to a URL."""
    parts = urlsplit(leads_to)
    # Chromium applies form-action to the redirect after a form, too
    form = f"'self' {parts.scheme}://{parts.netloc}" if leads_to else "'self'"
    return (
        "default-src 'none'; style-src 'self'; base-uri 'none'; "
        f"form-action {form}; frame-ancestors 'none'"
    )
