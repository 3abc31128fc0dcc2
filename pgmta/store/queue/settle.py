"""Writes outcomes: every attempt that a worker ends goes through this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

from pgmta.errors import Backend
from pgmta.mail.text import printable
from pgmta.model import ENHANCED, MAX_INDEXED_CHARACTERS, Facts, Outcome
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
from pgmta.store.queries import Statement, queries
from pgmta.store.queue.companion import SettleCompanion, settle_companions

_SQL = queries("settle")
_OFTEN_EMPTY = ("tenant", "message_id_header", "submitted_by", "metadata", "client")
_ENHANCED = ENHANCED.match
_FACTS_PER_ARRAY = 5  # of a connection, in each of two arrays
# the last value only fills the array up
_TIMES_OF = attrgetter(
    "dns_seconds", "connect_seconds", "greeting_seconds", "tls_seconds", "tls_seconds"
)
_TEXT_NAMES = ("address", "tls_version", "tls_cipher", "tls_verified")
_NO_TEXTS = Texts()
_NO_FACTS = Facts()
_MAX_REASON_CHARACTERS = 1000
# the end of a row whose outcome the log refuses
_END_WITHOUT_LOG = {Event.FAIL: "failed", Event.DELIVERED: "unknown", Event.UNKNOWN: "unknown"}


class Settlements:
    """Writes the outcomes of one worker's attempts, many in one commit."""

    def __init__(self, link: Link, worker: str) -> None:
        self._link = link
        self._worker = worker

    async def settle(self, outcomes: list[Outcome], again: bool = False) -> set[int]:
        """Log the attempts and move their rows; return the ids of the rows that changed.

        A row that is missing from the answer was taken over, or moved by an operator; the log
        has `late` for its attempt then.
        Raises StoreUnavailable. After an Undecided, settle the same outcomes `again`; if it is an
        AnswerLost, call `end` for its backend before. Raises psycopg.Error if PostgreSQL refuses
        one: none is written then.
        """
        # all transactions lock rows in this order, so that no two settlements deadlock
        outcomes = sorted(outcomes, key=lambda outcome: outcome.item.id)
        # the facts are mostly of few connections, and each is sent once
        keys = [id(o.facts) for o in outcomes]
        shared = dict(zip(keys, outcomes, strict=True))
        places = {key: _FACTS_PER_ARRAY * place for place, key in enumerate(shared)}
        facts = [o.facts or _NO_FACTS for o in shared.values()]
        texts = [[o.host for o in shared.values()]]
        texts += [[getattr(f, name) for f in facts] for name in _TEXT_NAMES]
        values: dict[str, Any] = {
            "ids": Bigints([o.item.id for o in outcomes]),
            "tokens": Bigints([o.item.token for o in outcomes]),
            "message_ids": Bigints([o.item.message_id for o in outcomes]),
            "senders": Texts([o.item.sender for o in outcomes]),
            "recipients": Texts([o.item.recipient[:MAX_INDEXED_CHARACTERS] for o in outcomes]),
            "domains": Texts([o.item.domain for o in outcomes]),
            "attempts": Integers([o.item.attempts - (o.event is Event.SUPPRESS) for o in outcomes]),
            "codes": Smallints([o.reply.code for o in outcomes]),
            "enhanced": Texts([((m := _ENHANCED(o.reply.text)) and m[0]) or "" for o in outcomes]),
            "replies": Texts([o.reply.text for o in outcomes]),
            "seconds": Reals([o.seconds for o in outcomes]),
            "commands": Texts([o.stage for o in outcomes]),
            "started": Instants([o.started for o in outcomes]),
            "ended": Instants([o.ended for o in outcomes]),
            "worker": self._worker,
            "again": again,
            "places": Smallints(map(places.__getitem__, keys)),
            "facts": Texts(chain.from_iterable(zip(*texts, strict=True))),
            "times": Reals(chain.from_iterable(map(_TIMES_OF, facts))),
        }
        for name in _OFTEN_EMPTY:
            column = [getattr(o.item, name) or "" for o in outcomes]
            values[name] = Texts(column) if any(column) else _NO_TEXTS
        values["events"] = values["classes"] = _NO_TEXTS
        moves = again or any(
            o.event is not Event.DELIVERED or o.report or o.dialogue for o in outcomes
        )
        companions: list[SettleCompanion] = []
        for companion in settle_companions():
            if (moves or companion.after) and (arrays := companion.arrays(outcomes)):
                values |= arrays
                companions.append(companion)
        if moves:
            said = any(o.dialogue for o in outcomes)
            statement = _settle(tuple(companions), said=said)
            values |= _moves(outcomes)
            if said:
                values |= _transcripts(outcomes)
        else:
            statement = _delivered(tuple(companions))
        changed = {row[0] for row in await self._link.run(statement, values)}
        changed.discard(None)  # stands for a line of the log without a changed row
        if again and len(changed) < len(outcomes):
            await self._link.prove()  # the first statement may have changed the other rows before
        return changed

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
                "kind": _END_WITHOUT_LOG.get(outcome.event),
                "reply": said,
                "worker": self._worker,
            },
        )

    async def end(self, backends: list[Backend]) -> None:
        """Return when the statements of these backends are done. Raises StoreUnavailable."""
        await self._link.end_backends(backends)


@cache
def _delivered(companions: Sequence[SettleCompanion]) -> Statement:
    """Return the statement of outcomes that are all deliveries."""
    return _SQL["delivered"].fill(log=_SQL["log"], after=_after(companions))


@cache
def _settle(companions: Sequence[SettleCompanion], *, said: bool) -> Statement:
    """Return the statement of other outcomes, of which some may have a dialogue."""
    columns = [each.column for each in companions if each.column]
    return _SQL["settle"].fill(
        log=_SQL["log"],
        transcripts=_SQL["transcripts"] if said else "",
        arrays="".join(f", %({each.name})b::{each.type}[]" for each in columns),
        columns="".join(f", {each.name}" for each in columns),
        values=b"".join(b", " + each.value for each in columns),
        after=_after(companions),
    )


def _after(companions: Sequence[SettleCompanion]) -> bytes:
    """Return the condition that evaluates the expressions of companions."""
    found = [b"(SELECT " + each.after + b") IS NOT NULL" for each in companions if each.after]
    return b" WHERE " + b" AND ".join(found) if found else b""


def _moves(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return what becomes of the rows."""
    return {
        "events": Texts(o.event.value for o in outcomes),
        "statuses": [_status_after(o) for o in outcomes],
        "delays": [o.delay for o in outcomes],
        "classes": Texts([o.answer_class for o in outcomes]),
        "reports": Texts([o.report if o.event is Event.DELIVERED else "" for o in outcomes]),
        "overdue": Reals([o.overdue for o in outcomes]),
    }


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
    return printable(text.encode(errors="replace").decode())[:_MAX_REASON_CHARACTERS]


def _status_after(outcome: Outcome) -> str | None:
    item = outcome.item
    status = after(outcome.event, once=item.once, on_failed=item.on_failed, report=outcome.report)
    return status.value if status else None
