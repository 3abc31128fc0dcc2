"""The site: which path does what, and its answer for programs and for browsers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from aiohttp import web

from pgmta.compose.token import Purpose, secret_of
from pgmta.http.answers import HTML_TYPE, JSON_TYPE, HttpAnswers, HttpError
from pgmta.http.route import HttpLimits, Route
from pgmta.http.server import HttpSite
from pgmta.http.server_connection import connection_of
from queued.web.callback_receipt import PREFIX, CallbackReceipts
from queued.web.clients import Clients
from queued.web.pages import Pages, stylesheet
from queued.web.readiness import Readiness
from queued.web.redemption import Redemption
from queued.web.requests import read_form, read_link, read_order, read_unsubscription
from queued.web.site_figures import SiteFigures
from queued.web.unsubscription import Unsubscriptions
from queued.web.web_config import Public, WebConfig

_CSS = "text/css; charset=utf-8"
_HSTS_S = 2 * 365 * 86400  # for which browsers keep to https
_MESSAGES = {422: "refused", 429: "limited", 503: "away", 404: "missing"}


class Site:
    """Answers requests. Only POST changes anything: scanners and browsers follow links early."""

    def __init__(
        self,
        config: WebConfig,
        clients: Clients,
        redemption: Redemption,
        unsubscriptions: Unsubscriptions,
        callbacks: CallbackReceipts,
        readiness: Readiness,
    ) -> None:
        self._clients = clients
        self._redemption = redemption
        self._unsubscriptions = unsubscriptions
        self._callbacks = callbacks
        self._readiness = readiness
        self._style = stylesheet()
        self.figures = SiteFigures()
        """The responses so far."""
        self.configure(config)

    def configure(self, config: WebConfig) -> None:
        """Use other URLs and limits from now on."""
        self._public, limits = config.public, config.limits
        self._base = urlsplit(config.public.url).path
        self._callbacks.configure(config.callbacks, config.public.url)
        self._answers = HttpAnswers(_headers(config.public))
        self._pages = Pages(self._base)
        routes = [
            Route("POST", "/v1/tokens/verify", self._verify),
            Route("POST", "/v1/tokens/consume", self._consume),
            Route("POST", f"{PREFIX}{{rest:.*}}", self._callback, limits.callback),
            Route("GET", "/healthy", self._healthy),
            Route("GET", "/ready", self._ready),
            Route("GET", "/activate", self._ask, page=True),
            Route("POST", "/activate", self._activate, page=True),
            Route("GET", "/activated", self._activated, page=True),
            Route("GET", "/unsubscribe", self._ask, page=True),
            Route("POST", "/unsubscribe", self._unsubscribe, page=True),
            Route("GET", "/unsubscribed", self._unsubscribed, page=True),
            Route("GET", "/style.css", self._stylesheet, page=True),
        ]
        if config.public.recovered:
            routes += [
                Route("GET", "/recover", self._ask, page=True),
                Route("POST", "/recover", self._recover, page=True),
            ]
        bounds = HttpLimits(
            limits.connections, limits.request, limits.idle, limits.body, limits.address_connections
        )
        self.served = HttpSite(
            routes, bounds, self._answers, self._base, self._page_of, count=self.figures.count
        )
        """What the listeners serve."""

    def _client_of(self, request: web.Request) -> str:
        fields = request.headers.getall("X-Forwarded-For", [])
        return self._clients.find_client(connection_of(request).peer, fields)

    # -- for programs --

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        order = await read_order(request)
        await self._redemption.verify(order, self._client_of(request))
        return self._answers.make(b'{"valid": true}', JSON_TYPE)

    async def _consume(self, request: web.Request) -> web.StreamResponse:
        order = await read_order(request)
        found = await self._redemption.consume(order, self._client_of(request))
        members: dict[str, Any] = {"account": found.account, "login": found.login}
        if found.proof:
            members["proof"] = found.proof
        return self._answers.make(json.dumps(members).encode(), JSON_TYPE)

    async def _callback(self, request: web.Request) -> web.StreamResponse:
        client = self._client_of(request)
        taken = await self._callbacks.take(request, request.path.removeprefix(self._base), client)
        await self._callbacks.note(taken, client)
        return self._answers.make(b'{"status": "taken"}', JSON_TYPE)

    async def _healthy(self, _: web.Request) -> web.StreamResponse:
        return self._answers.make(b'{"status": "healthy"}', JSON_TYPE)

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        if reason := await self._readiness.problem():
            raise HttpError(503, reason, {"Retry-After": "5"})
        return self._answers.make(b'{"status": "ready"}', JSON_TYPE)

    # -- for browsers --

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        """Show the button. A look at a link consumes nothing, and asks no database."""
        token, name = read_link(request), request.path.rpartition("/")[2]
        if secret_of(token, Purpose(name)) is None:
            raise HttpError(422, "The link is not whole.")
        return self._page(request, name, token=token, refused=False)

    async def _activate(self, request: web.Request) -> web.StreamResponse:
        order = await read_form(request, Purpose.ACTIVATE)
        await self._redemption.consume(order, self._client_of(request))
        return self._answers.redirect(self._public.activated or f"{self._public.url}/activated")

    async def _activated(self, request: web.Request) -> web.StreamResponse:
        return self._page(request, "message", message="activated")

    async def _recover(self, request: web.Request) -> web.StreamResponse:
        order = await read_form(request, Purpose.RECOVER)
        try:
            found = await self._redemption.consume(order, self._client_of(request))
        except HttpError as error:
            if error.status != 422 or secret_of(order.token) is None:
                raise
            return self._page(request, "recover", 422, token=order.token, refused=True)
        return self._answers.redirect(with_proof(str(self._public.recovered), str(found.proof)))

    async def _unsubscribe(self, request: web.Request) -> web.StreamResponse:
        order = await read_unsubscription(request)
        await self._unsubscriptions.unsubscribe(order.token, self._client_of(request))
        if order.one_click:  # no redirect (RFC 8058, section 3.1)
            return self._page(request, "message", message="unsubscribed")
        return self._answers.redirect(f"{self._public.url}/unsubscribed")

    async def _unsubscribed(self, request: web.Request) -> web.StreamResponse:
        return self._page(request, "message", message="unsubscribed")

    async def _stylesheet(self, _: web.Request) -> web.StreamResponse:
        return self._answers.make(self._style, _CSS)

    def _page_of(self, request: web.Request, error: HttpError) -> web.StreamResponse:
        message = _MESSAGES.get(error.status, "wrong")
        if message == "refused" and request.path.endswith(Purpose.UNSUBSCRIBE.path):
            message = "unknown"
        return self._page(request, "message", error.status, error.headers, message=message)

    def _page(
        self,
        request: web.Request,
        name: str,
        status: int = 200,
        more: Mapping[str, str] | None = None,
        **values: Any,
    ) -> web.StreamResponse:
        languages = ",".join(request.headers.getall("Accept-Language", []))
        page, headers = self._pages.render(name, languages, **values)
        return self._answers.make(page, HTML_TYPE, status, {**headers, **(more or {})})


def _headers(public: Public) -> dict[str, str]:
    """Return the header fields that protect browsers."""
    targets = dict.fromkeys(_origin(url) for url in (public.activated, public.recovered) if url)
    # Chromium asks form-action again about the redirect that answers a form
    form = " ".join(["'self'", *targets])
    found = {
        "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; "
        f"form-action {form}; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
    }
    if public.url.startswith("https:"):
        found["Strict-Transport-Security"] = f"max-age={_HSTS_S}"
    return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def with_proof(url: str, proof: str) -> str:
    """Return a URL with the parameter `proof` beside its own ones."""
    parts = urlsplit(url)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("proof", proof)])
    return urlunsplit(parts._replace(query=query))
