"""Answers of our HTTP servers: their header fields, and errors as problems (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
HTML_TYPE = "text/html; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"

_ALWAYS_FIELDS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Server": "pgmta",
}


class HttpError(Exception):
    """A request that gets an error. `detail` says why, without any value of the request.

    `kind` is the type of its problem, and `title` the title of that.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        kind: str = "about:blank",
        title: str = "",
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.kind = status, detail, kind
        self.title = title or HTTPStatus(status).phrase
        self.headers = dict(headers or {})

    def problem(self) -> bytes:
        """Return the problem document."""
        return json.dumps({
            "type": self.kind, "title": self.title, "status": self.status, "detail": self.detail,
        }).encode()  # fmt: skip


class HttpAnswers:
    """Makes the answers of a listener. Each has the fields `headers`, and some that all have."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = {**_ALWAYS_FIELDS, **(headers or {})}

    def make(
        self, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """Return an answer. `kind` is the content type."""
        return web.Response(body=body, status=status, headers=self.fields(kind, headers))

    def fields(self, kind: str, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the header fields of an answer that is made elsewhere."""
        return {"Content-Type": kind, **self.bare_fields(headers)}

    def bare_fields(self, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the header fields of an answer without a body."""
        return {**self._headers, **(headers or {})}

    def problem(self, error: HttpError) -> web.Response:
        """Return an error for programs."""
        return self.make(error.problem(), PROBLEM_TYPE, error.status, error.headers)

    def redirect(self, url: str) -> web.Response:
        """Return the answer that leads from a form to another page."""
        return self.make(b"", HTML_TYPE, 303, {"Location": url})
