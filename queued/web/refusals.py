"""Errors of tokens and callbacks."""

from __future__ import annotations

from pgmta.http.answers import HttpError

REFUSED = "urn:pgmta:token-refused"
"""The type of the problem that each refused token has."""


def refusal() -> HttpError:
    """Return the answer to each token that is refused, whatever the reason."""
    detail = "The token or its code is wrong, expired or used."
    return HttpError(422, detail, kind=REFUSED, title="Token refused")


def too_many(wait: float) -> HttpError:
    """Return the answer to a client that has had too many refusals."""
    seconds = str(int(wait) + 1)
    return HttpError(429, "Too many refused tokens.", {"Retry-After": seconds})


def away() -> HttpError:
    """Return the answer while PostgreSQL can't consume tokens."""
    return HttpError(503, "The database does not answer now.", {"Retry-After": "5"})
