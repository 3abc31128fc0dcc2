"""Queries of operators: lists, counts, one message with its history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from psycopg.sql import Literal

from pgmta.features import features
from pgmta.model import NamedHop
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import Statement, bracketed, feature_queries, queries
from pgmta.store.queue.failing_conditions import Condition
from pgmta.store.queue.labels import next_hop_of
from pgmta.store.queue.reading import Fault, reading

COLUMN_FIELDS = (
    "status",
    "domain",
    "tenant",
    "sender",
    "recipient",
    "priority",
    "attempts",
    "last_reply",
    "hold_reason",
    "held_by",
    "lease_owner",
    "message_id",
)
"""The columns of queue by which rows can be counted."""

NEXT_HOP, AGE, LAST_CLASS = "next-hop", "age", "class"
DERIVED_FIELDS = (NEXT_HOP, AGE, LAST_CLASS)
"""Values by which rows can be counted, and that are no columns of queue.

They are the next hop by the present routes, the age in classes, and the answer class of the last
attempt, which costs a look into the log for each row.
"""

LOGGED_FIELDS = (
    "event",
    "class",
    "domain",
    "tenant",
    "host",
    "code",
    "enhanced",
    "command",
    "worker",
    "sender",
    "recipient",
    "message_id",
)
"""The columns of attempts by which attempts can be counted."""

UNDELIVERABLE = "undeliverable"
"""The hold_reason that `settle` writes (sql/queries/settle.sql); last_reply says more."""

HEAD_OCTETS = 1 << 16
"""The start of a message, in which its header is searched."""

_SQL = queries("listing")


@cache
def waits_for() -> bytes:
    """Return the expression of a row `q` of queue for what it waits, as features know it."""
    found = [
        feature_queries(name)[feature.waits_for]
        for name, feature in features().items()
        if feature.waits_for
    ]
    return b"coalesce(" + b", ".join((*found, b"NULL::text")) + b")"


class MessageReports(NamedTuple):
    """Rows of `reports`: `notified` is about a message, and `origins` has what it is the DSN of."""

    notified: list[dict[str, Any]]
    origins: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return both for a machine."""
        return {"reports": self.notified, "report_of": self.origins}


class Listing:
    """Reads the queue. Methods raise psycopg.Error.

    Rows on which a condition fails are left out; `faults` has them afterwards.
    """

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db
        self.faults: list[Fault] = []

    async def rows(self, where: str, limit: int, after: int = 0) -> list[dict[str, Any]]:
        """Return the rows that the condition matches, oldest first, from the row `after` on."""
        params = {"limit": limit, "after": after}
        return await self._read(_SQL["list"], where, params, waits_for=waits_for())

    async def count_rows(
        self, where: str, by: str, hops: Sequence[NamedHop] = ()
    ) -> list[dict[str, Any]]:
        """Count rows by one of COLUMN_FIELDS, DERIVED_FIELDS or metadata.KEY, with the oldest time.

        The first of `hops` that has a row names its next hop. Raises ValueError for another `by`.
        """
        if by == AGE:
            return await self._read(_SQL["ages"], where, {})
        if by == NEXT_HOP:
            column: str | bytes = next_hop_of(hops)
        else:
            column = _SQL["last_class"] if by == LAST_CLASS else self._column(by, COLUMN_FIELDS)
        return await self._read(_SQL["count"], where, {}, column=column)

    async def count_attempts(self, where: str, by: str, since: float) -> list[dict[str, Any]]:
        """Count the attempts of the last `since` seconds by one of LOGGED_FIELDS or metadata.KEY.

        The condition names columns of queue; of them the log has addresses, ids, metadata,
        attempts and last_reply. Raises ValueError for another `by`, psycopg.Error.
        """
        query = _SQL["count_attempts"].fill(
            column=self._column(by, LOGGED_FIELDS), where=bracketed(where)
        )
        return await self._db.rows(query, {"since": since})

    def _column(self, by: str, columns: Sequence[str]) -> bytes:
        if by in columns:
            return f'"{by}"'.encode()
        if by.startswith("metadata."):
            key = Literal(by.removeprefix("metadata.")).as_string(self._db)
            return bracketed(f"metadata ->> {key}").encode()
        raise ValueError(by)

    async def matching(self, where: str, failing: bool = False) -> int:
        """Return how many rows the condition matches; with `failing` also those on which it fails.

        `faults` names the latter afterwards.
        """
        ((row,), self.faults) = await reading(
            self._db,
            [Condition("the condition", where)],
            "true",
            lambda texts: self._db.rows(_SQL["matching"].fill(where=texts[0]), {}),
            [failing],
        )
        return int(row["count"])

    async def _read(
        self, query: Statement, where: str, params: dict[str, Any], **parts: str | bytes
    ) -> list[dict[str, Any]]:
        rows, self.faults = await reading(
            self._db,
            [Condition("the condition", where)],
            "true",
            lambda texts: self._db.rows(query.fill(where=texts[0], **parts), params),
        )
        return rows

    async def message(self, message_id: int) -> dict[str, Any] | None:
        """Return the message and the start of its content, None if it is not stored (any more)."""
        params = {"id": message_id, "head": HEAD_OCTETS}
        return await self._db.row(_SQL["message"], params)

    async def parameters(self, message_id: int) -> dict[str, Any] | None:
        """Return the parts of composed mail, or the words of its template; they may be secret.

        A number is a text, because it may be of any length.
        """
        found = await self._db.row(_SQL["parameters"], {"id": message_id})
        if not found or found["params"] is None:
            return None
        params: dict[str, Any] = json.loads(found["params"], parse_int=str, parse_float=str)
        return params

    async def arrival(self, message_id: int) -> dict[str, Any] | None:
        """Return who submitted the message, and how; None if it is not stored (any more)."""
        return await self._db.row(_SQL["arrival"], {"id": message_id})

    async def history(self, message_id: int) -> list[dict[str, Any]]:
        """Return all attempts for a message, also for one that is gone."""
        return await self._db.rows(_SQL["history"], {"id": message_id})

    async def transcripts(self, message_id: int) -> list[dict[str, Any]]:
        """Return the transcripts of a message that were kept, in order."""
        return await self._db.rows(_SQL["transcripts"], {"id": message_id})

    async def reports(self, message_id: int) -> MessageReports:
        """Return the DSNs about a message, and what it is the DSN of."""
        params = {"id": message_id}
        return MessageReports(
            await self._db.rows(_SQL["notified"], params),
            await self._db.rows(_SQL["origins"], params),
        )
