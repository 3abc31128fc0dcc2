"""Pages and endpoints of accounts in `queued web`: tokens are verified and consumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from aiohttp import web

from pgmta.compose.token import Purpose, secret_of
from pgmta.http.answers import JSON_TYPE, HttpError
from pgmta.http.route import Route
from pgmta_features.lifecycle.consumption import Consumptions, check_login
from pgmta_features.lifecycle.redemption import Redemption
from pgmta_features.lifecycle.return_pages import ReturnPages
from pgmta_features.lifecycle.token_order import read_form, read_order
from queued.web.site import Site, WebPart
from queued.web.web_config import WebConfig


class AccountPages:
    """Answers for programs, and pages for browsers."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._consumptions = Consumptions(site.tokens)
        self._redemption = Redemption(site, self._consumptions)

    @property
    def _activated_url(self) -> str:
        found = self._site.config.section(ReturnPages).activated
        return found or f"{self._site.config.public.url}/activated"

    def routes(self) -> Sequence[Route]:
        """Return the routes. There is no page /recover without a page of the application."""
        to = self._site.config.section(ReturnPages)
        found = [
            Route("POST", "/v1/tokens/verify", self._verify),
            Route("POST", "/v1/tokens/consume", self._consume),
            Route("GET", "/activate", self._ask_activation, page=True),
            Route("POST", "/activate", self._activate, page=True, leads_to=to.activated or ""),
            Route("GET", "/activated", self._activated, page=True),
        ]
        if to.recovered:
            found += [
                Route("GET", "/recover", self._ask_recovery, page=True),
                Route("POST", "/recover", self._recover, page=True, leads_to=to.recovered),
            ]
        return found

    async def problem(self) -> str:
        """Return why no token can be consumed; '' if they can.

        Raises StoreUnavailable, psycopg.Error.
        """
        try:
            if not await self._consumptions.there():
                return "The database has no schema lifecycle, or the login may not use it."
            await self._consumptions.check_accounts()
        except psycopg.errors.InsufficientPrivilege:
            return "The login may not read the accounts."
        return ""

    # -- for programs --

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        order = await read_order(request)
        await self._redemption.verify(order, self._site.client_of(request))
        return self._site.answers.make(b'{"valid": true}', JSON_TYPE)

    async def _consume(self, request: web.Request) -> web.StreamResponse:
        order = await read_order(request)
        found = await self._redemption.consume(order, self._site.client_of(request))
        members: dict[str, Any] = {"account": found.account, "login": found.login}
        if found.proof:
            members["proof"] = found.proof
        return self._site.answers.make(json.dumps(members).encode(), JSON_TYPE)

    # -- for browsers --

    async def _ask_activation(self, request: web.Request) -> web.StreamResponse:
        return self._site.ask(request, Purpose.ACTIVATE)

    async def _ask_recovery(self, request: web.Request) -> web.StreamResponse:
        return self._site.ask(request, Purpose.RECOVER)

    async def _activate(self, request: web.Request) -> web.StreamResponse:
        order = await read_form(request, Purpose.ACTIVATE)
        await self._redemption.consume(order, self._site.client_of(request))
        return self._site.answers.redirect(self._activated_url)

    async def _activated(self, request: web.Request) -> web.StreamResponse:
        return self._site.page(request, "message", message="activated")

    async def _recover(self, request: web.Request) -> web.StreamResponse:
        order = await read_form(request, Purpose.RECOVER)
        try:
            found = await self._redemption.consume(order, self._site.client_of(request))
        except HttpError as error:
            if error.status != 422 or secret_of(order.token) is None:
                raise
            return self._site.page(request, "recover", 422, token=order.token, refused=True)
        url = str(self._site.config.section(ReturnPages).recovered)
        return self._site.answers.redirect(with_proof(url, str(found.proof)))


def with_proof(url: str, proof: str) -> str:
    """Return a URL with the parameter `proof` beside its own ones."""
    parts = urlsplit(url)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("proof", proof)])
    return urlunsplit(parts._replace(query=query))


def _warnings(config: WebConfig) -> list[str]:
    if config.tokens.recover and not config.section(ReturnPages).recovered:
        return ["public.recovered is missing, so that there is no page /recover"]
    return []


PAGES = WebPart(
    begin=AccountPages,
    is_used=lambda config: bool(config.tokens.activate or config.tokens.recover),
    warnings=_warnings,
    check=check_login,
    folder=Path(__file__).parent,
)
