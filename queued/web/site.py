"""The site: which path does what, and its answer for programs and for browsers."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from aiohttp import web

from pgmta.compose.token import Purpose, secret_of
from queued.web.callback_receipt import PREFIX, CallbackReceipts
from queued.web.clients import Clients
from queued.web.doors import Door
from queued.web.http_answers import CSS, HTML, JSON, HttpAnswers, HttpError
from queued.web.pages import Pages, stylesheet
from queued.web.readiness import Readiness
from queued.web.redemption import Redemption
from queued.web.requests import read_form, read_link, read_order, read_unsubscription
from queued.web.site_figures import SiteFigures
from queued.web.unsubscription import Unsubscriptions
from queued.web.web_config import WebConfig

type Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_MESSAGES = {422: "refused", 429: "limited", 503: "away", 404: "missing"}
_READ = ("GET", "HEAD")


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
        self._public = config.public
        self._body = config.limits.body
        self._base = urlsplit(config.public.url).path
        self._callbacks.configure(config.callbacks, config.public.url, config.limits.callback)
        self._answers = HttpAnswers(config.public)
        self._pages = Pages(self._base)
        self.problem = self._answers.problem
        self._programs: dict[str, dict[str, Handler]] = {
            "/v1/tokens/verify": {"POST": self._verify},
            "/v1/tokens/consume": {"POST": self._consume},
            "/healthy": dict.fromkeys(_READ, self._healthy),
            "/ready": dict.fromkeys(_READ, self._ready),
        }
        self._browsers: dict[str, dict[str, Handler]] = {
            "/activate": {**dict.fromkeys(_READ, self._ask), "POST": self._activate},
            "/activated": dict.fromkeys(_READ, self._activated),
            "/unsubscribe": {**dict.fromkeys(_READ, self._ask), "POST": self._unsubscribe},
            "/unsubscribed": dict.fromkeys(_READ, self._unsubscribed),
            "/style.css": dict.fromkeys(_READ, self._stylesheet),
        }
        if config.public.recovered:
            self._browsers["/recover"] = {
                **dict.fromkeys(_READ, self._ask),
                "POST": self._recover,
            }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        door = request.protocol
        assert isinstance(door, Door)  # noqa: S101 - for the type checker
        door.serve()
        began = time.monotonic()
        code = 500
        try:
            response = await self._handle(request, door)
            code = response.status
        finally:
            self.figures.count(self._known(request), code, time.monotonic() - began)
        return response

    def _known(self, request: web.BaseRequest) -> str:
        """Return the path if there is such a one, for figures."""
        path = request.path.removeprefix(self._base)
        if path.startswith(PREFIX):
            return PREFIX.rstrip("/")
        return path if path in self._programs or path in self._browsers else "other"

    async def _handle(self, request: web.BaseRequest, door: Door) -> web.StreamResponse:
        path = request.path.removeprefix(self._base)
        handlers = self._programs.get(path) or self._browsers.get(path, {})
        if path.startswith(PREFIX):
            handlers = {"POST": self._callback}
            door.allow(request.content_length or 0)
        try:
            return await self._choose(handlers, request)(request)
        except HttpError as error:
            if path in self._browsers or (not handlers and _is_browser(request)):
                return self._page_of(request, error)
            return self.problem(error)

    def _choose(self, handlers: Mapping[str, Handler], request: web.BaseRequest) -> Handler:
        if not handlers:
            raise HttpError(404, "There is no such path.")
        if handler := handlers.get(request.method):
            return handler
        raise HttpError(405, "The path has other methods.", {"Allow": ", ".join(handlers)})

    def client_of(self, request: web.BaseRequest) -> str:
        """Return the address of the client. The body is there, so the time of the answer begins."""
        door = request.protocol
        assert isinstance(door, Door)  # noqa: S101 - for the type checker
        door.read()
        fields = request.headers.getall("X-Forwarded-For", [])
        return self._clients.find_client(door.peer, fields)

    # -- for programs --

    async def _verify(self, request: web.BaseRequest) -> web.StreamResponse:
        order = await read_order(request, self._body)
        await self._redemption.verify(order, self.client_of(request))
        return self._answers.make(b'{"valid": true}', JSON)

    async def _consume(self, request: web.BaseRequest) -> web.StreamResponse:
        order = await read_order(request, self._body)
        found = await self._redemption.consume(order, self.client_of(request))
        members: dict[str, Any] = {"account": found.account, "login": found.login}
        if found.proof:
            members["proof"] = found.proof
        return self._answers.make(json.dumps(members).encode(), JSON)

    async def _callback(self, request: web.BaseRequest) -> web.StreamResponse:
        client = self.client_of(request)
        taken = await self._callbacks.take(request, request.path.removeprefix(self._base), client)
        await self._callbacks.note(taken, client)
        return self._answers.make(b'{"status": "taken"}', JSON)

    async def _healthy(self, _: web.BaseRequest) -> web.StreamResponse:
        return self._answers.make(b'{"status": "healthy"}', JSON)

    async def _ready(self, _: web.BaseRequest) -> web.StreamResponse:
        if reason := await self._readiness.problem():
            raise HttpError(503, reason, {"Retry-After": "5"})
        return self._answers.make(b'{"status": "ready"}', JSON)

    # -- for browsers --

    async def _ask(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the button. A look at a link consumes nothing, and asks no database."""
        token, name = read_link(request), request.path.rpartition("/")[2]
        if secret_of(token, Purpose(name)) is None:
            raise HttpError(422, "The link is not whole.")
        return self._page(request, name, token=token, refused=False)

    async def _activate(self, request: web.BaseRequest) -> web.StreamResponse:
        order = await read_form(request, Purpose.ACTIVATE, self._body)
        await self._redemption.consume(order, self.client_of(request))
        return self._answers.redirect(self._public.activated or f"{self._public.url}/activated")

    async def _activated(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._page(request, "message", message="activated")

    async def _recover(self, request: web.BaseRequest) -> web.StreamResponse:
        order = await read_form(request, Purpose.RECOVER, self._body)
        try:
            found = await self._redemption.consume(order, self.client_of(request))
        except HttpError as error:
            if error.status != 422 or secret_of(order.token) is None:
                raise
            return self._page(request, "recover", 422, token=order.token, refused=True)
        return self._answers.redirect(with_proof(str(self._public.recovered), str(found.proof)))

    async def _unsubscribe(self, request: web.BaseRequest) -> web.StreamResponse:
        order = await read_unsubscription(request, self._body)
        await self._unsubscriptions.unsubscribe(order.token, self.client_of(request))
        if order.one_click:  # no redirect (RFC 8058, section 3.1)
            return self._page(request, "message", message="unsubscribed")
        return self._answers.redirect(f"{self._public.url}/unsubscribed")

    async def _unsubscribed(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._page(request, "message", message="unsubscribed")

    async def _stylesheet(self, _: web.BaseRequest) -> web.StreamResponse:
        return self._answers.make(self._style, CSS)

    def _page_of(self, request: web.BaseRequest, error: HttpError) -> web.StreamResponse:
        message = _MESSAGES.get(error.status, "wrong")
        if message == "refused" and request.path.endswith(Purpose.UNSUBSCRIBE.path):
            message = "unknown"
        return self._page(request, "message", error.status, error.headers, message=message)

    def _page(
        self,
        request: web.BaseRequest,
        name: str,
        status: int = 200,
        more: Mapping[str, str] | None = None,
        **values: Any,
    ) -> web.StreamResponse:
        languages = ",".join(request.headers.getall("Accept-Language", []))
        page, headers = self._pages.render(name, languages, **values)
        return self._answers.make(page, HTML, status, {**headers, **(more or {})})


def _is_browser(request: web.BaseRequest) -> bool:
    return "text/html" in request.headers.get("Accept", "")


def with_proof(url: str, proof: str) -> str:
    """Return a URL with the parameter `proof` beside its own ones."""
    parts = urlsplit(url)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("proof", proof)])
    return urlunsplit(parts._replace(query=query))
