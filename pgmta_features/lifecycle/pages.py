"""Pages and endpoints of accounts in `queued web`: tokens are verified and consumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from aiohttp import web

from pgmta.compose.token import Purpose, secret_of
from pgmta.http.answers import JSON_TYPE, HttpError
from pgmta.http.route import Route
from pgmta.logs import get
from pgmta_features.lifecycle.action_pages import ActionPage
from pgmta_features.lifecycle.consumption import Consumption, Consumptions, check_login
from pgmta_features.lifecycle.redemption import Redemption
from pgmta_features.lifecycle.token_order import (
    OrderPurpose,
    TokenOrder,
    is_confirmed,
    read_form,
    read_order,
)
from queued.web.requests import read_whole_link
from queued.web.site import Site, WebPart

_ACTION = "action"  # the variable part of a path

_MESSAGES = {
    "/activated": "activated",
    "/confirmed": "confirmed",
    "/half-confirmed": "half_confirmed",
}
"""Texts of pages without a button, by path."""

log = get("web")


class AccountPages:
    """Answers for programs, and pages for browsers."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._consumptions = Consumptions(site.tokens)
        self._redemption = Redemption(site, self._consumptions)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        found = [
            Route("POST", "/v1/tokens/verify", self._verify),
            Route("POST", "/v1/tokens/consume", self._consume),
        ]
        for purpose in (Purpose.ACTIVATE, Purpose.RECOVER, Purpose.CONFIRM):
            more = f"/{{{_ACTION}}}" if purpose is Purpose.CONFIRM else ""
            found += [
                Route("GET", purpose.path + more, partial(self._ask, purpose), page=True),
                Route("POST", purpose.path + more, partial(self._redeem, purpose), page=True),
            ]
        for path, message in _MESSAGES.items():
            found.append(Route("GET", path, partial(self._say, message), page=True))
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
        order, client = await read_order(request), self._site.client_of(request)
        secret = await self._redemption.check(order, client)
        found = await self._redemption.consume(secret, order, client)
        members: dict[str, Any] = {"account": found.account, "login": found.login}
        if found.proof:
            members["proof"] = found.proof
        if found.missing:
            members["missing"] = found.missing
        return self._site.answers.make(json.dumps(members).encode(), JSON_TYPE)

    # -- for browsers --

    async def _ask(self, purpose: OrderPurpose, request: web.Request) -> web.StreamResponse:
        """Show the button of a link. A look at a link changes nothing."""
        action = _action_of(request)
        order = TokenOrder(purpose=purpose, action=action, token=read_whole_link(request, purpose))
        return self._show(request, order, await self._page_of(order))

    async def _redeem(self, purpose: OrderPurpose, request: web.Request) -> web.StreamResponse:
        order = await read_form(request, purpose, _action_of(request))
        client = self._site.client_of(request)
        try:
            secret = await self._redemption.check(order, client)
            page = await self._page_of(order)  # before its proof is made
            found = await self._redemption.consume(secret, order, client)
        except HttpError as error:
            if (
                error.status != 422
                or not order.code
                or secret_of(order.token, order.purpose) is None
            ):
                raise
            page = await self._page_of(order)
            if not page.code:
                raise
            return self._show(request, order, page, refused=True)
        return self._site.answers.redirect(self._next(order, page, found))

    async def _say(self, message: str, request: web.Request) -> web.StreamResponse:
        return self._site.page(request, "message", message=message)

    def _show(
        self, request: web.Request, order: TokenOrder, page: ActionPage, *, refused: bool = False
    ) -> web.StreamResponse:
        return self._site.page(
            request,
            "token",
            422 if refused else 200,
            leads_to=page.returns_to,
            purpose=order.purpose,
            path=order.path,
            token=order.token,
            titles=page.titles,
            code=page.code,
            refused=refused,
        )

    async def _page_of(self, order: TokenOrder) -> ActionPage:
        """Return the page of an action. Raises HttpError: 404, 503."""
        name = order.action_name
        page = await self._redemption.find_action(name)
        if page and page.proof and not page.returns_to:
            log.warning("an action has no page", action=name, reason="returns_to takes its proof")
            page = None
        if page is None:
            raise HttpError(404, "There is no such page.")
        return page

    def _next(self, order: TokenOrder, page: ActionPage, found: Consumption) -> str:
        """Return the URL to which a browser goes after a consumption."""
        if page.returns_to and not found.missing:
            return with_proof(page.returns_to, found.proof) if found.proof else page.returns_to
        activated = "activated" if order.purpose is Purpose.ACTIVATE else "confirmed"
        path = "half-confirmed" if found.missing else activated
        return f"{self._site.config.public.url}/{path}"


def _action_of(request: web.Request) -> str:
    """Return the action in the path, '' if it has none. Raises HttpError: 404."""
    action = request.match_info.get(_ACTION)
    if action is not None and not is_confirmed(action):
        raise HttpError(404, "There is no such page.")
    return action or ""


def with_proof(url: str, proof: str) -> str:
    """Return a URL with the parameter `proof` beside its own ones."""
    parts = urlsplit(url)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("proof", proof)])
    return urlunsplit(parts._replace(query=query))


PAGES = WebPart(
    begin=AccountPages,
    is_used=lambda config: bool(
        config.tokens.activate or config.tokens.recover or config.tokens.confirm
    ),
    check=check_login,
    folder=Path(__file__).parent,
)
