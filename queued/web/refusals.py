"""Errors of tokens and callbacks."""

from __future__ import annotations

from pgmta.http.answers import HttpError

REFUSED_TYPE = "urn:pgmta:token-refused"
"""The type of the problem that each refused token has."""


class PageError(HttpError):
    """An error whose page has texts of its own: those with the name `message`."""

    def __init__(
        self,
        message: str,
        detail: str,
        kind: str = "about:blank",
        title: str = "",
        status: int = 422,
    ) -> None:
        super().__init__(status, detail, kind=kind, title=title)
        self.message = message


def refusal(message: str = "refused") -> HttpError:
    """Return the answer to each token that is refused, whatever the reason."""
    detail = "The token or its code is wrong, expired or used."
    return PageError(message, detail, REFUSED_TYPE, "Token refused")


def too_many(wait: float) -> HttpError:
    """Return the answer to a client that has had too many refusals."""
    seconds = str(int(wait) + 1)
    return HttpError(429, "Too many refused tokens.", {"Retry-After": seconds})


def away() -> HttpError:
    """Return the answer while PostgreSQL can't consume tokens."""
    return HttpError(503, "The database does not answer now.", {"Retry-After": "5"})
