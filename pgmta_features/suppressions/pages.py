"""Pages of `queued web` that unsubscribe: the signature first, then the database."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import psycopg
from aiohttp import web

from pgmta.compose.token import LinkNumbers, Purpose
from pgmta.errors import StoreUnavailable
from pgmta.http.answers import HttpError
from pgmta.http.request_body import read_body
from pgmta.http.route import Route
from pgmta.logs import get
from pgmta.postgres import faults
from queued.web.refusals import away, refusal, too_many
from queued.web.requests import (
    FORM,
    MAX_CHARACTERS,
    MAX_FIELDS,
    form_fields,
    read_link,
    read_whole_link,
)
from queued.web.site import Site, WebPart

from .unsubscription_table import UnsubscriptionTable

_MULTIPART = "multipart/form-data"
_UNKNOWN = "unknown"  # texts of the page of a link that does not work

log = get("web")


class UnsubscriptionPages:
    """Unsubscribes those whose tokens are signed. A forged token asks no database.

    Each refusal has the same answer, and each repetition that of the first time.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._table = UnsubscriptionTable(site.tokens)

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        return (
            Route("GET", "/unsubscribe", self._ask, page=True),
            Route("POST", "/unsubscribe", self._unsubscribe, page=True),
            Route("GET", "/unsubscribed", self._unsubscribed, page=True),
        )

    async def problem(self) -> str:
        """Return why nobody can unsubscribe; '' if they can.

        Raises StoreUnavailable, psycopg.Error.
        """
        found = await self._table.unsubscribable()
        return "" if found else "The login may not unsubscribe recipients."

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        token = read_whole_link(request, Purpose.UNSUBSCRIBE, _UNKNOWN)
        return self._site.page(request, "unsubscribe", token=token)

    async def _unsubscribe(self, request: web.Request) -> web.StreamResponse:
        order = await read_unsubscription(request)
        await self._note(order.token, self._site.client_of(request))
        if order.one_click:  # no redirect (RFC 8058, section 3.1)
            return await self._unsubscribed(request)
        return self._site.answers.redirect(f"{self._site.config.public.url}/unsubscribed")

    async def _unsubscribed(self, request: web.Request) -> web.StreamResponse:
        return self._site.page(request, "message", message="unsubscribed")

    async def _note(self, token: str, client: str) -> None:
        """Unsubscribe the recipient whom a token names. Raises HttpError: 422, 429, 503."""
        if wait := self._site.clients.free_in(client):
            raise too_many(wait)
        octets = self._site.rings.rings[Purpose.UNSUBSCRIBE].verify(token)
        if octets is None:
            self._site.clients.count_refusal(client)
            log.info("token refused", action="unsubscribe", why="signature", client=client)
            raise refusal(_UNKNOWN)
        numbers = LinkNumbers.read(octets)
        try:
            self._site.schema.require()
            known = await self._table.unsubscribe(numbers)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("a recipient could not unsubscribe", reason=faults.one_line(error))
            raise away() from None
        if not known:  # not counted as above: a provider may follow old links for many users
            log.warning(
                "a link names nobody", action="unsubscribe", **_named(numbers), client=client
            )
            raise refusal(_UNKNOWN)
        log.info("unsubscribed", **_named(numbers), client=client)


def _named(numbers: LinkNumbers) -> dict[str, int]:
    """Return the numbers as the log has them."""
    if numbers.list < 0:
        return {"message": -numbers.list, "row": numbers.number}
    return {"campaign": numbers.list, "number": numbers.number}


class Unsubscription(NamedTuple):
    """A token that unsubscribes. A program of a provider sent it with `one_click`, else a page."""

    token: str
    one_click: bool


async def read_unsubscription(request: web.Request) -> Unsubscription:
    """Return the order of a form (RFC 8058, section 3.1). Raises HttpError.

    A provider sends the link, and List-Unsubscribe=One-Click in a form of either type. A page has
    the token in its form.
    """
    body = await read_body(request, f"{FORM}, {_MULTIPART}")
    fields = _parts(request, body) if request.content_type == _MULTIPART else form_fields(body)
    if fields.get("List-Unsubscribe", "").strip() == "One-Click":
        return Unsubscription(read_link(request), one_click=True)
    if "token" not in fields:
        raise HttpError(400, "The body has no List-Unsubscribe=One-Click.")
    return Unsubscription(fields["token"][:MAX_CHARACTERS], one_click=False)


def _parts(request: web.Request, body: bytes) -> dict[str, str]:
    """Return the fields of a form in parts (RFC 7578), as programs write them. Raises HttpError."""
    boundary = _parameter(request.headers.get("Content-Type", ""), "Content-Type", "boundary")
    text = body.decode("latin-1")
    if not boundary or f"--{boundary}" not in text:
        raise HttpError(400, "The body is no form.")
    fields = {}
    for part in text.split(f"--{boundary}")[1 : MAX_FIELDS + 1]:
        header, _, value = part.replace("\r\n", "\n").partition("\n\n")
        for line in header.strip().split("\n"):
            name, _, disposition = line.partition(":")
            if name.strip().lower() == "content-disposition":
                key = _parameter(disposition.strip(), "Content-Disposition", "name")
                fields[key] = value.removesuffix("\n")
    return fields


def _parameter(value: str, name: str, wanted: str) -> str:
    """Return a parameter of a field of MIME, '' if it is not there."""
    message = Message()
    message[name] = value
    try:
        return str(message.get_param(wanted, "", name))
    except (TypeError, ValueError):  # parts of a parameter without order (RFC 2231)
        return ""


PAGES = WebPart(
    begin=UnsubscriptionPages,
    is_used=lambda config: bool(config.tokens.unsubscribe),
    folder=Path(__file__).parent,
)
