"""Writes outcomes: every attempt that a worker ends goes through this module."""

from __future__ import annotations

from typing import Any

from pgmta.errors import Backend
from pgmta.model import ENHANCED, Outcome
from pgmta.postgres.binary import Bigints, Instants, Integers, Smallints, Texts
from pgmta.postgres.link import Link
from pgmta.states import Event, after
from pgmta.store.queries import queries
from pgmta.text import printable

_SQL = queries("settle")
_SETTLE = _SQL["settle"].fill(removable="", kept="")
_REMOVING = _SQL["settle"].fill(removable=_SQL["removable"], kept=_SQL["kept"])
_OFTEN_EMPTY = ("tenant", "message_id_header", "submitted_by", "metadata")
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
        plain = not again and all(o.event is Event.DELIVERED for o in outcomes)
        values: dict[str, Any] = {
            "ids": Bigints(o.item.id for o in outcomes),
            "tokens": Bigints(o.item.token for o in outcomes),
            "message_ids": Bigints(o.item.message_id for o in outcomes),
            "senders": Texts(o.item.sender for o in outcomes),
            "recipients": Texts(o.item.recipient[:_INDEXED] for o in outcomes),
            "domains": Texts(o.item.domain for o in outcomes),
            "attempts": Integers(o.item.attempts for o in outcomes),
            "codes": Smallints(o.reply.code for o in outcomes),
            "enhanced": Texts(
                ((m := ENHANCED.match(o.reply.text)) and m[0]) or "" for o in outcomes
            ),
            "replies": Texts(o.reply.text for o in outcomes),
            "hosts": Texts(o.host for o in outcomes),
            "commands": Texts(o.stage for o in outcomes),
            "started": Instants(o.started for o in outcomes),
            "ended": Instants(o.ended for o in outcomes),
            "worker": self._worker,
        }
        for name in _OFTEN_EMPTY:
            texts = [getattr(o.item, name) or "" for o in outcomes]
            values[name] = Texts(texts) if any(texts) else _NONE
        statement = _SQL["delivered"]
        if not plain:
            statuses = [_status_after(o) for o in outcomes]
            values["events"] = Texts(o.event.value for o in outcomes)
            values["statuses"] = statuses
            values["delays"] = [o.delay for o in outcomes]
            values["again"] = again
            gone = sum(o.event is Event.DELIVERED for o in outcomes)
            statement = _REMOVING if statuses.count(None) > gone else _SETTLE
        rows = await self._link.run(statement, values)
        return {row[0] for row in rows}

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


def _stored(text: str) -> str:
    return printable(text.encode(errors="replace").decode())[:_REASON]


def _status_after(outcome: Outcome) -> str | None:
    status = after(outcome.event, once=outcome.item.once, remove=outcome.item.remove)
    return status.value if status else None
