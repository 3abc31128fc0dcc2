"""Tokens in requests: those of links that were followed, and of forms."""

from __future__ import annotations

from urllib.parse import parse_qs, parse_qsl

from aiohttp import web

from pgmta.compose.token import Purpose, secret_of
from pgmta.http.answers import HttpError
from queued.web.refusals import PageError

FORM = "application/x-www-form-urlencoded"
"""The content type of a form."""

MAX_FIELDS = 5
"""Fields of a form or of a link."""

MAX_CHARACTERS = 200
"""Of a value that is looked at."""


def read_link(request: web.Request) -> str:
    """Return the token of the link that was followed, '' if there is none."""
    try:
        fields = parse_qs(request.query_string, max_num_fields=MAX_FIELDS)
    except ValueError:
        fields = {}
    return fields.get("token", [""])[0][:MAX_CHARACTERS]


def read_whole_link(request: web.Request, purpose: Purpose, message: str = "refused") -> str:
    """Return the token of a link, with any signature. Raises PageError with the `message`."""
    token = read_link(request)
    if secret_of(token, purpose) is None:
        raise PageError(message, "The link is not whole.")
    return token


def form_fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raises HttpError."""
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=MAX_FIELDS))
    except ValueError:
        raise HttpError(400, "The body is no form.") from None
