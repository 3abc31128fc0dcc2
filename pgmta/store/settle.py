"""Writes outcomes: every attempt that a worker ends goes through this module."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from pgmta.errors import Backend
from pgmta.model import ENHANCED, Facts, Outcome
from pgmta.postgres.binary import (
    Bigints,
    Instants,
    Integers,
    Reals,
    Smallints,
    Texts,
)
from pgmta.postgres.link import Link
from pgmta.states import Event, after
from pgmta.store.queries import queries
from pgmta.text import printable

_SQL = queries("settle")
_STATEMENTS = {
    (name, removing, said): _SQL[name].fill(
        transcripts=_SQL["transcripts"] if said else b"",
        removable=_SQL["removable"] if removing else b"",
        kept=_SQL["kept"] if removing else b"",
    )
    for name in ("delivered", "settle")
    for removing in (False, True)
    for said in (False, True)
}
_UNKNOWN = Facts()
_OFTEN_EMPTY = ("tenant", "message_id_header", "submitted_by", "metadata")
_COLUMNS: dict[str, tuple[Any, attrgetter[Any]]] = {
    "ids": (Bigints, attrgetter("item.id")),
    "tokens": (Bigints, attrgetter("item.token")),
    "message_ids": (Bigints, attrgetter("item.message_id")),
    "senders": (Texts, attrgetter("item.sender")),
    "domains": (Texts, attrgetter("item.domain")),
    "attempts": (Integers, attrgetter("item.attempts")),
    "codes": (Smallints, attrgetter("reply.code")),
    "replies": (Texts, attrgetter("reply.text")),
    "commands": (Texts, attrgetter("stage")),
    "started": (Instants, attrgetter("started")),
    "ended": (Instants, attrgetter("ended")),
    "seconds": (Reals, attrgetter("seconds")),
}
_FACTS: dict[str, tuple[Any, attrgetter[Any]]] = {
    "address": (Texts, attrgetter("address")),
    "tls_version": (Texts, attrgetter("tls_version")),
    "tls_cipher": (Texts, attrgetter("tls_cipher")),
    "tls_verified": (Texts, attrgetter("tls_verified")),
    "dns_seconds": (Reals, attrgetter("dns_seconds")),
    "tls_seconds": (Reals, attrgetter("tls_seconds")),
}
_NONE = Texts()
_REASON = 1000  # characters
_INDEXED = 600  # characters of a recipient in the log: an index entry has at most 2,704 octets


class Settlements:
    """Writes the outcomes of one worker's attempts, many in one commit."""

    def __init__(self, link: Link, worker: str) -> None:
        self._link = link
        self._worker = worker

    async def settle(self, outcomes: list[Outcome], again: bool = False) -> set[int]:
        """Log the attempts and move their rows; return the ids of the rows that changed.

        A row that is missing from the answer was taken over, or moved by an operator.
        Raises StoreUnavailable. After an AnswerLost, call `end` for its backend, and settle the
        same outcomes `again`. Raises psycopg.Error if PostgreSQL refuses one: none is written then.
        """
        # all transactions lock rows in this order, or two settlements may wait for each other
        outcomes = sorted(outcomes, key=lambda outcome: outcome.item.id)
        values: dict[str, Any] = {
            name: kind(map(column, outcomes)) for name, (kind, column) in _COLUMNS.items()
        }
        values["recipients"] = Texts(o.item.recipient[:_INDEXED] for o in outcomes)
        values["enhanced"] = Texts(
            ((m := ENHANCED.match(o.reply.text)) and m[0]) or "" for o in outcomes
        )
        values["worker"] = self._worker
        values["again"] = again
        for name in _OFTEN_EMPTY:
            texts = [getattr(o.item, name) or "" for o in outcomes]
            values[name] = Texts(texts) if any(texts) else _NONE
        # most attempts of a batch share a few connections, whose facts are sent once
        shared = {(id(o.facts), o.host): o for o in outcomes}
        places = {key: place for place, key in enumerate(shared, 1)}
        values["places"] = Smallints(places[id(o.facts), o.host] for o in outcomes)
        values["hosts"] = Texts(o.host for o in shared.values())
        facts = [o.facts or _UNKNOWN for o in shared.values()]
        for name, (kind, column) in _FACTS.items():
            values[name] = kind(map(column, facts))
        values["connecting"] = Reals(f.connect_seconds + f.greeting_seconds for f in facts)
        plain = not again and all(o.event is Event.DELIVERED for o in outcomes)
        removing = False
        if not plain:
            statuses = [_status_after(o) for o in outcomes]
            values["events"] = Texts(o.event.value for o in outcomes)
            values["statuses"] = statuses
            values["delays"] = [o.delay for o in outcomes]
            removing = statuses.count(None) > sum(o.event is Event.DELIVERED for o in outcomes)
        if said := any(o.dialogue for o in outcomes):
            values |= _transcripts(outcomes)
        statement = _STATEMENTS["delivered" if plain else "settle", removing, said]
        return {row[0] for row in await self._link.run(statement, values)}

    async def set_aside(self, outcome: Outcome, refusal: str) -> None:
        """Put the row of an outcome that PostgreSQL refuses on hold, with the reason.

        Raises StoreUnavailable, psycopg.Error.
        """
        said = _stored(str(outcome.reply))
        reply = f" ({said})" if said else ""
        reason = f"{outcome.event.value}{reply}, but the database refuses this outcome: {refusal}"
        await self._link.run(
            _SQL["set_aside"],
            {
                "id": outcome.item.id,
                "token": outcome.item.token,
                "delivered": outcome.event is Event.DELIVERED,
                "reason": _stored(reason),
                "reply": said,
                "worker": self._worker,
            },
        )

    async def end(self, backends: list[Backend]) -> None:
        """Return when the statements of these backends are done. Raises StoreUnavailable."""
        await self._link.end(backends)


def _transcripts(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the dialogues of the outcomes; the rows of one transaction share theirs."""
    shared: dict[tuple[Any, ...], list[Outcome]] = {}
    for each in outcomes:
        if each.dialogue:
            key = each.item.message_id, each.item.token, each.ended, each.traces, each.dialogue
            shared.setdefault(key, []).append(each)
    firsts = [group[0] for group in shared.values()]
    return {
        "said_at": Instants(o.ended for o in firsts),
        "said_of": Bigints(o.item.message_id for o in firsts),
        "said_under": Bigints(o.item.token for o in firsts),
        "said_for": Texts(_array(o.item.id for o in group) for group in shared.values()),
        "traces": Texts(_array(o.traces) if o.traces else "" for o in firsts),
        "dialogues": Texts(o.dialogue for o in firsts),
    }


def _array(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _stored(text: str) -> str:
    return printable(text.encode(errors="replace").decode())[:_REASON]


def _status_after(outcome: Outcome) -> str | None:
    status = after(outcome.event, once=outcome.item.once, remove=outcome.item.remove)
    return status.value if status else None
