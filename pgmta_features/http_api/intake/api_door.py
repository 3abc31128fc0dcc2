"""The requests of a group, each for its key, in one call of api_submit()."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import uuid4

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queries import feature_queries

_SQL = feature_queries("http_api")

_MAX_SMALL_MAILS = 100  # of a request that takes PostgreSQL no second


class Outcome(StrEnum):
    """What became of a request; api_submit() has the same words."""

    STORED = "stored"
    REPLAYED = "replayed"  # an earlier one with its Idempotency-Key was stored
    OTHER = "other"  # its Idempotency-Key was used for other content
    BUSY = "busy"  # another process works on its Idempotency-Key
    LOST = "lost"  # its uploads are gone, because PostgreSQL has crashed
    REVOKED = "revoked"  # the key of the API has ended since the request began


@dataclass(frozen=True, slots=True)
class SendRequest:
    """The mails of a request, each as JSON, and for whom they are stored.

    `senders` are those from which templates may send, None: any. `uploads` are pairs of a UUID and
    a number of octets, whose places the mails name. `refused_early` is what the answer needs about
    mails that are none of these, and is kept with the Idempotency-Key `key`.
    """

    acting: str
    senders: tuple[str, ...] | None
    mails: Sequence[str]
    key: str = ""
    fingerprint: str = ""
    uploads: Sequence[tuple[str, int]] = ()
    refused_early: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        """Octets of all mails, about."""
        return sum(map(len, self.mails)) + sum(octets for _, octets in self.uploads)

    @property
    def is_large(self) -> bool:
        """Whether it may take PostgreSQL seconds, for which no other request has to wait."""
        return bool(self.uploads) or len(self.mails) > _MAX_SMALL_MAILS


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a request, and of each of its mails; `problems` and `suppressed` name them."""

    outcome: Outcome
    ids: Sequence[int | None] = ()
    problems: Sequence[dict[str, Any]] = ()
    suppressed: Sequence[dict[str, Any]] = ()
    refused_early: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Set:
    """Requests of one key, in one call of submit_mails()."""

    requests: list[SendRequest] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # in the group

    def text(self) -> str:
        first = self.requests[0]
        more = f',"uploads":{json.dumps(first.uploads)}' if first.uploads else ""
        if first.key:
            inner = ",".join(map(_keyed, self.requests))
            more += f',"requests":[{inner}]'
        else:
            inner = ",".join(mail for each in self.requests for mail in each.mails)
            more += f',"call":"{uuid4()}","mails":[{inner}]'
        return (
            f'{{"acting":{json.dumps(first.acting)},"senders":{json.dumps(first.senders)}{more}}}'
        )

    def decided(self, rows: Sequence[Sequence[Any]]) -> Iterable[tuple[int, Decided]]:
        """Yield what became of each request, with its place in the group."""
        if self.requests[0].key:
            for request, outcome, ids, problems, suppressed, early in rows:
                yield (
                    self.places[request],
                    Decided(Outcome(outcome), ids or (), problems or (), suppressed or (), early),
                )
            return
        ((_, outcome, ids, problems, suppressed, _),) = rows
        start = 0
        for place, each in zip(self.places, self.requests, strict=True):
            number = len(each.mails)
            yield place, Decided(
                Outcome(outcome), (ids or ())[start : start + number],
                _slice(problems, start, number), _slice(suppressed, start, number),
                each.refused_early,
            )  # fmt: skip
            start += number


class ApiDoor:
    """api_submit(), which only the API may call."""

    role = "pgmta_api"

    def __init__(self, max_requests: int) -> None:
        self.max_mails = max_requests  # a request is what the group counts

    def write(self, mails: Iterable[SendRequest]) -> tuple[str, Sequence[_Set]]:
        """Return the group as JSON, and its sets. A request with uploads is a set of its own."""
        sets: dict[tuple[object, ...], _Set] = {}
        for place, request in enumerate(mails):
            name = (
                request.acting, request.senders, bool(request.key),
                place if request.uploads else -1,
            )  # fmt: skip
            found = sets.setdefault(name, _Set())
            found.requests.append(request)
            found.places.append(place)
        return f"[{','.join(each.text() for each in sets.values())}]", [*sets.values()]

    async def submit(
        self, link: Link, written: tuple[str, Sequence[_Set]], call: object, *, again: bool
    ) -> Sequence[Decided]:
        """Return what became of each request. Raises StoreUnavailable, AnswerLost, psycopg.Error.

        Each set has a UUID or keys, by which a repetition gets the answer of the first call.
        """
        text, sets = written
        rows: list[list[Sequence[Any]]] = [[] for _ in sets]
        for number, *row in await link.run(_SQL["submit"], {"sets": text}):
            rows[number].append(row)
        found = dict(each for s, r in zip(sets, rows, strict=True) for each in s.decided(r))
        decided = [found[place] for place in range(len(found))]
        if not again:
            return decided
        if any(each.outcome is Outcome.BUSY for each in decided):
            raise StoreUnavailable("the first call is still at work")
        return [_as_first_answer(each) for each in decided]


def _keyed(request: SendRequest) -> str:
    early = f',"refused_early":{json.dumps(request.refused_early)}' if request.refused_early else ""
    return (
        f'{{"key":{json.dumps(request.key)},"fingerprint":"{request.fingerprint}",'
        f'"mails":[{",".join(request.mails)}]{early}}}'
    )


def _slice(
    entries: Sequence[dict[str, Any]] | None, start: int, number: int
) -> Sequence[dict[str, Any]]:
    """Return the entries about some mails, whose places count from `start`."""
    return [
        {**each, "index": each["index"] - start}
        for each in entries or ()
        if start <= each["index"] < start + number
    ]


def _as_first_answer(decided: Decided) -> Decided:
    """Return what the call whose answer was lost has stored, which is no repetition of a client."""
    if decided.outcome is not Outcome.REPLAYED:
        return decided
    return Decided(
        Outcome.STORED, decided.ids, decided.problems, decided.suppressed, decided.refused_early
    )
