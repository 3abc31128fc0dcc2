"""Errors of the API: problems (RFC 9457) that name the place and the nearest valid word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from pgmta.http.answers import HttpError

TYPE_PREFIX = "urn:pgmta:problem:"

PROBLEMS: dict[str, tuple[str, tuple[int, ...]]] = {
    "insecure": ("The API needs a protected connection", (403,)),
    "key-missing": ("The request has no key", (401,)),
    "key-refused": ("The key is refused", (401,)),
    "key-expired": ("The key has expired", (401,)),
    "network-refused": ("The key may not be used from this address", (403,)),
    "too-many-refusals": ("Too many refused keys", (429,)),
    "rate": ("Too many requests", (429,)),
    "scope-missing": ("The key lacks a scope", (403,)),
    "not-found": ("There is no such thing", (404,)),
    "conflict": ("Its state does not allow that", (409,)),
    "body-missing": ("The request needs a body", (400,)),
    "body-unexpected": ("The request takes no body", (400,)),
    "body-type": ("The body has another type", (415,)),
    "body-size": ("The body is too large", (413,)),
    "not-json": ("The body is not JSON", (400,)),
    "cursor-gone": ("The events behind the cursor are not there", (409,)),
    "invalid": ("The request is not valid", (400, 422)),
    "busy": ("Too much is under way", (503,)),
    "timeout": ("The database took too long", (503,)),
    "database-away": ("The database does not answer", (503,)),
    "sender-refused": ("The key may not send from this address", (403,)),
    "tenant-refused": ("The key may not send for this tenant", (403,)),
    "credential-refused": ("The key may not send by this credential", (403,)),
    "priority-refused": ("The key may not ask for this priority", (403,)),
    "in-flight": ("The first request with this Idempotency-Key is under way", (409,)),
    "key-reused": ("The Idempotency-Key was used for another request", (422,)),
    "undecided": ("It is open whether the mail was stored", (503,)),
    "refused": ("The database refuses the mail", (422,)),
    "webhook-exists": ("There is such a webhook already", (409,)),
    "webhook-of-operator": ("The webhook is an operator's", (403,)),
    "webhooks-full": ("There are too many webhooks", (409,)),
    "webhooks-keyless": ("The installation derives no secrets", (409,)),
}
"""The title and the statuses of each problem, by the word at the end of its type.

A query that is invalid gets 400, and a body 422.
"""

ALWAYS = (
    "insecure", "key-missing", "key-refused", "key-expired", "network-refused",
    "too-many-refusals", "rate", "invalid", "timeout", "database-away", "busy",
)  # fmt: skip
"""Words of the problems that every operation may have."""

_RETRY_S = 5  # for a client to wait while the database is away


class Problem(HttpError):
    """An error of the API. Its type is `urn:pgmta:problem:WORD`, and `detail` is a sentence.

    `pointer` is a JSON pointer (RFC 6901) into the body. `errors` has an entry for each mistake:
    `detail`, and `pointer`, or `parameter` for one of the query. One with a pointer alone is made.
    """

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
        super().__init__(status, detail, headers, TYPE_PREFIX + word, PROBLEMS[word][0])
        self.word, self.pointer, self.errors = word, pointer, list(errors)
        if pointer and not errors:
            name = pointer.rpartition("/")[2]
            self.errors = [{"pointer": pointer, "detail": detail.removeprefix(f"{name}: ")}]

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
        return to_json(self.document())


def not_found(what: str) -> Problem:
    """Return the problem of a thing that there is not, or that is foreign: both get the same."""
    return Problem(404, "not-found", f"There is no such {what}, or the key may not see it.")


def key_refused(detail: str, word: str = "key-refused") -> Problem:
    """Return the problem of a key that does not hold."""
    return Problem(401, word, detail,
                   headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})  # fmt: skip


def conflict(reason: str) -> Problem:
    """Return the problem of a change that the state of a thing does not allow."""
    return Problem(409, "conflict", sentences(reason))


def sentences(*texts: str | None) -> str:
    """Return the texts that are not empty as sentences."""
    found = [f"{text[:1].upper()}{text[1:]}" for text in texts if text]
    return " ".join(text if text.endswith((".", "?")) else f"{text}." for text in found)


def away(seconds: int = _RETRY_S) -> Problem:
    """Return the problem while PostgreSQL does not answer."""
    return Problem(
        503, "database-away", "The database does not answer now. Repeat the request.",
        headers={"Retry-After": str(seconds)},
    )  # fmt: skip


def pointer_of(*path: str | int) -> str:
    """Return the JSON pointer of a place (RFC 6901, section 3)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
