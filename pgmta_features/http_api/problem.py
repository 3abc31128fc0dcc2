"""Errors of the API: problems (RFC 9457) that name the place and the nearest valid word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pgmta.http.answers import HttpError

TYPE_PREFIX = "urn:pgmta:problem:"

TITLES = {
    "insecure": "The API needs a protected connection",
    "key-missing": "The request has no key",
    "key-refused": "The key is refused",
    "key-expired": "The key has expired",
    "network-refused": "The key may not be used from this address",
    "too-many-refusals": "Too many refused keys",
    "rate": "Too many requests",
    "scope-missing": "The key lacks a scope",
    "not-found": "There is no such thing",
    "conflict": "Its state does not allow that",
    "body-missing": "The request needs a body",
    "body-unexpected": "The request takes no body",
    "body-type": "The body has another type",
    "body-size": "The body is too large",
    "not-json": "The body is not JSON",
    "cursor-gone": "The events behind the cursor are not there",
    "invalid": "The request is not valid",
    "busy": "Too much is under way",
    "timeout": "The database took too long",
    "database-away": "The database does not answer",
}
"""The title of each problem of the frame, by the word at the end of its type.

A resource adds its own by `Problem.TITLES`.
"""

STATUSES: dict[str, tuple[int, ...]] = {
    "insecure": (403,),
    "key-missing": (401,),
    "key-refused": (401,),
    "key-expired": (401,),
    "network-refused": (403,),
    "too-many-refusals": (429,),
    "rate": (429,),
    "scope-missing": (403,),
    "not-found": (404,),
    "body-missing": (400,),
    "body-unexpected": (400,),
    "body-type": (415,),
    "body-size": (413,),
    "not-json": (400,),
    "conflict": (409,),
    "cursor-gone": (409,),
    "invalid": (400, 422),
    "busy": (503,),
    "timeout": (503,),
    "database-away": (503,),
}
"""The statuses of each problem; a resource adds those of its own by `Problem.STATUSES`.

A query that is invalid gets 400, and a body 422.
"""

ALWAYS = (
    "insecure", "key-missing", "key-refused", "key-expired", "network-refused",
    "too-many-refusals", "rate", "invalid", "timeout", "database-away",
)  # fmt: skip
"""Words of the problems that every operation may have."""

_RETRY_S = 5  # for a client to wait while the database is away


class Problem(HttpError):
    """An error of the API. Its type is `urn:pgmta:problem:WORD`, and `detail` is a sentence.

    `pointer` is a JSON pointer (RFC 6901) into the body. `errors` has an entry for each mistake, if
    there are several: `detail`, and `pointer`, or `parameter` for one of the query.
    """

    TITLES = TITLES
    STATUSES = STATUSES

    def __init__(
        self,
        status: int,
        word: str,
        detail: str,
        *,
        pointer: str = "",
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(status, detail, headers, TYPE_PREFIX + word, TITLES.get(word, ""))
        self.word, self.pointer, self.errors = word, pointer, list(errors)

    def document(self) -> dict[str, Any]:
        """Return the problem document, also as a part of the answer to a batch."""
        found: dict[str, Any] = {
            "type": self.kind, "title": self.title, "status": self.status, "detail": self.detail,
        }  # fmt: skip
        if self.pointer:
            found["pointer"] = self.pointer
        if self.errors:
            found["errors"] = self.errors
        return found

    def problem(self) -> bytes:
        """Return the problem document."""
        return json.dumps(self.document()).encode()


def not_found(what: str) -> Problem:
    """Return the problem of a thing that there is not, or that is foreign: both get the same."""
    return Problem(404, "not-found", f"There is no such {what}, or the key may not see it.")


def conflict(reason: str) -> Problem:
    """Return the problem of a change that the state of a thing does not allow."""
    return Problem(409, "conflict", f"{reason[:1].upper()}{reason[1:].rstrip('.')}.")


def away(seconds: int = _RETRY_S) -> Problem:
    """Return the problem while PostgreSQL does not answer."""
    return Problem(
        503, "database-away", "The database does not answer now. Repeat the request.",
        headers={"Retry-After": str(seconds)},
    )  # fmt: skip


def pointer_of(*path: str | int) -> str:
    """Return the JSON pointer of a place (RFC 6901, section 3)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
