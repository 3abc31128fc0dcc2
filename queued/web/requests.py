"""Bodies of requests: read within bounds, as JSON or as a form."""

from __future__ import annotations

from email.message import Message
from typing import Annotated, Literal, NamedTuple
from urllib.parse import parse_qs, parse_qsl

from aiohttp import web
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from pgmta.compose.token import Purpose
from pgmta.http.answers import HttpError
from pgmta.http.request_body import read_body

_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_MULTIPART = "multipart/form-data"
_FIELDS = 5
_LONGEST = 200  # characters of a value that is looked at

_Text = Annotated[str, StringConstraints(max_length=_LONGEST, strict=True)]


class Unsubscription(NamedTuple):
    """A token that unsubscribes. A program of a provider sent it with `one_click`, else a page."""

    token: str
    one_click: bool


class TokenOrder(BaseModel):
    """A token that comes back, its purpose, and the code of a recovery."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Literal[Purpose.ACTIVATE, Purpose.RECOVER]
    token: _Text
    code: _Text = ""


async def read_order(request: web.Request) -> TokenOrder:
    """Return the order of a program. Raises HttpError."""
    body = await read_body(request, _JSON)
    try:
        return TokenOrder.model_validate_json(body)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_context=False, include_url=False)[0]
        name = str(detail["loc"][0]) if detail["loc"] else ""
        known = name in TokenOrder.model_fields
        reason = f"{name}: {detail['msg']}" if known else "unknown member" if name else "no JSON"
        raise HttpError(400, f"The body is no order of a token: {reason}.") from None


async def read_form(
    request: web.Request, purpose: Literal[Purpose.ACTIVATE, Purpose.RECOVER]
) -> TokenOrder:
    """Return the order of a form. Raises HttpError. Values that are too long are shortened."""
    fields = _pairs(await read_body(request, _FORM))
    return TokenOrder(
        purpose=purpose,
        token=fields.get("token", "")[:_LONGEST],
        code=fields.get("code", "").strip()[:_LONGEST],
    )


def read_link(request: web.Request) -> str:
    """Return the token of the link that was followed, '' if there is none."""
    try:
        fields = parse_qs(request.query_string, max_num_fields=_FIELDS)
    except ValueError:
        fields = {}
    return fields.get("token", [""])[0][:_LONGEST]


async def read_unsubscription(request: web.Request) -> Unsubscription:
    """Return the order of a form (RFC 8058, section 3.1). Raises HttpError.

    A provider sends the link, and List-Unsubscribe=One-Click in a form of either type. A page has
    the token in its form.
    """
    body = await read_body(request, f"{_FORM}, {_MULTIPART}")
    fields = _parts(request, body) if request.content_type == _MULTIPART else _pairs(body)
    if fields.get("List-Unsubscribe", "").strip() == "One-Click":
        return Unsubscription(read_link(request), one_click=True)
    if "token" not in fields:
        raise HttpError(400, "The body has no List-Unsubscribe=One-Click.")
    return Unsubscription(fields["token"][:_LONGEST], one_click=False)


def _pairs(body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raises HttpError."""
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=_FIELDS))
    except ValueError:
        raise HttpError(400, "The body is no form.") from None


def _parts(request: web.Request, body: bytes) -> dict[str, str]:
    """Return the fields of a form in parts (RFC 7578), as programs write them. Raises HttpError."""
    boundary = _parameter(request.headers.get("Content-Type", ""), "Content-Type", "boundary")
    text = body.decode("latin-1")
    if not boundary or f"--{boundary}" not in text:
        raise HttpError(400, "The body is no form.")
    fields = {}
    for part in text.split(f"--{boundary}")[1 : _FIELDS + 1]:
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
