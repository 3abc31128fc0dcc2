"""An operation of the API as data: OpenAPI is made from it, and requests are checked by it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)

from pgmta_features.http_api.caller import Caller

if TYPE_CHECKING:
    from aiohttp import web

MULTIPART_TYPE = "multipart/form-data"
RAW_TYPE = "message/rfc822"


def utc(at: datetime) -> str:
    """Return a time as the API writes it: RFC 3339, in UTC with Z."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


Time = Annotated[
    datetime,
    PlainSerializer(
        utc, return_type=Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
    ),
]
"""A time in an answer."""

_FIRST_YEAR, _LAST_YEAR = 1970, 9998  # of clients: days and zones away are in reach of datetime too


def _in_reach[D: date](at: D) -> D:
    if not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ValueError(f"expected a year from {_FIRST_YEAR} to {_LAST_YEAR}")
    return at


GivenTime = Annotated[AwareDatetime, AfterValidator(_in_reach)]
"""A time that a client gives."""
GivenDay = Annotated[date, AfterValidator(_in_reach)]
"""A day that a client gives."""
Id = Annotated[
    int,
    PlainSerializer(
        str, return_type=Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[0-9]+$"})]
    ),
]
"""A bigint of the database in an answer: a string, because numbers of JSON are exact to 2^53."""

MAX_ID = (1 << 63) - 1
"""The greatest bigint."""
_ID = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def id_of(text: str) -> int:
    """Return the number that an id is; 0 for a text that is none."""
    found = int(text) if _ID.fullmatch(text) else 0
    return found if found <= MAX_ID else 0


Version = Annotated[int, Field(ge=1, lt=1 << 31)]
"""A version of a template: an integer of the database."""


class Received(BaseModel):
    """A body or a query that a client sends. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def collected(fields: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return parameters of a query with all `NAME.KEY` as the mapping NAME. Raises ValueError."""
    if isinstance(fields.get(name), str):
        raise ValueError(f"{name}: write it as {name}.KEY=VALUE")
    begin = f"{name}."
    words = {
        each.removeprefix(begin): text for each, text in fields.items() if each.startswith(begin)
    }
    others = {each: text for each, text in fields.items() if not each.startswith(begin)}
    return {**others, name: words} if words else others


class Nothing(Received):
    """A body without keys."""


@dataclass(slots=True)
class Call:
    """A request that was checked: key, scope, query and body.

    `path` has the variable parts of the path, `query` and `body` the models of the operation (None
    without). `key` is the Idempotency-Key, '' without.
    """

    caller: Caller
    request: web.Request
    path: Mapping[str, str]
    query: Any
    body: Any
    key: str
    take_octets: Callable[[int], None]
    """Counts octets of a body that the handler reads itself; raises Problem if too many are under
    way in the process. They count until the answer is there."""
    renew: Callable[[], Awaitable[None]]
    """Looks whether the key still holds, and raises Problem if not. Answers that take more than a
    second, such as streams, call it each second, and who reads a body behind its end."""


@dataclass(slots=True)
class Answer:
    """An answer: a model or a mapping, which become JSON, or nothing. Nulls of a model are left
    out."""

    body: BaseModel | Mapping[str, Any] | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


type Handled = Callable[[Call], Awaitable[Answer | web.StreamResponse]]
"""Answers a call, by a stream if it has to. Raises HttpError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method and a path such as `/v1/messages/{id}`, and who answers them.

    `scope` is that which a key needs, '' if any key will do. `body` and `query` are models of what
    a client sends, checked before the handler. `answers` has the model of each status, `problems`
    the words of problems beyond those of every operation (problem.ALWAYS). `other_bodies` are
    content types, with descriptions, that the handler reads itself from `call.request`. With
    `stores` it takes an Idempotency-Key. `max_body` is in octets; 0: `limits.api_body`. Other
    bodies have at most `max_stream` octets; 0: the same. `other_answers` are content types, with
    descriptions, that the handler may answer with in place of JSON. `public` needs no key:
    `call.caller` has no name and no scope. The handler judges the members of the list
    `judged_singly` of the body one by one; a text that can't be stored leaves a Problem in place of
    its member.
    """

    method: str
    path: str
    scope: str
    summary: str
    handler: Handled
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answers: Mapping[int, type[BaseModel] | None]
    problems: tuple[str, ...] = ()
    max_body: int = 0
    max_stream: int = 0
    other_bodies: Mapping[str, str] = field(default_factory=dict)
    other_answers: Mapping[str, str] = field(default_factory=dict)
    stores: bool = False
    public: bool = False
    judged_singly: str = ""

    @property
    def takes_body(self) -> bool:
        """Whether a client may send a body."""
        return self.body is not None or bool(self.other_bodies)

    @property
    def needs_body(self) -> bool:
        """Whether a client has to send a body: it may be left out if it may be an empty object."""
        if self.body is None or self.other_bodies:
            return bool(self.other_bodies)
        try:
            self.body()
        except ValidationError:
            return True
        return False
