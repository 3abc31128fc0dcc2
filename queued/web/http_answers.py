"""Answers of HTTP: their header fields, problems (RFC 9457), and errors that become answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohttp import web

from queued.web.web_config import Public

JSON = "application/json"
PROBLEM = "application/problem+json"
HTML = "text/html; charset=utf-8"
CSS = "text/css; charset=utf-8"
_YEARS = 2 * 365 * 86400  # seconds that browsers keep to https
REFUSED = "urn:pgmta:token-refused"
"""The type of the problem that each refused token has."""


class HttpError(Exception):
    """A request that gets an error. `detail` says why, without any value of the request."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, kind: str = ""
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.kind = status, detail, kind
        self.headers = dict(headers or {})

    def problem(self) -> bytes:
        """Return the problem document."""
        title = "Token refused" if self.kind else HTTPStatus(self.status).phrase
        return json.dumps({
            "type": self.kind or "about:blank", "title": title, "status": self.status,
            "detail": self.detail,
        }).encode()  # fmt: skip


def refusal() -> HttpError:
    """Return the answer to each token that is refused, whatever the reason."""
    return HttpError(422, "The token or its code is wrong, expired or used.", kind=REFUSED)


def too_many(wait: float) -> HttpError:
    """Return the answer to a client that has had too many refusals."""
    seconds = str(int(wait) + 1)
    return HttpError(429, "Too many refused tokens.", {"Retry-After": seconds})


def away() -> HttpError:
    """Return the answer while PostgreSQL can't consume tokens."""
    return HttpError(503, "The database does not answer now.", {"Retry-After": "5"})


class HttpAnswers:
    """Makes answers, with the header fields that protect browsers."""

    def __init__(self, public: Public) -> None:
        targets = dict.fromkeys(_origin(url) for url in (public.activated, public.recovered) if url)
        # Chromium asks form-action again about the redirect that answers a form
        form = " ".join(["'self'", *targets])
        self._headers = {
            "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; "
            f"form-action {form}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Server": "pgmta",
        }
        if public.url.startswith("https:"):
            self._headers["Strict-Transport-Security"] = f"max-age={_YEARS}"

    def make(
        self, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """Return an answer."""
        fields = {**self._headers, "Content-Type": kind, **(headers or {})}
        return web.Response(body=body, status=status, headers=fields)

    def problem(self, error: HttpError) -> web.Response:
        """Return an error for programs."""
        return self.make(error.problem(), PROBLEM, error.status, error.headers)

    def redirect(self, url: str) -> web.Response:
        """Return the answer that leads from a form to another page."""
        return self.make(b"", HTML, 303, {"Location": url})


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
