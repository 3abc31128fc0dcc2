"""Changes to many rows, in batches that each commit, with an entry in the audit table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import connect_operator
from pgmta.postgres.notify import NOTIFY
from pgmta.store.guard import Condition, about_a_row
from pgmta.store.pace import Pace
from pgmta.store.queries import bracketed, queries
from pgmta.store.reading import Fault, reading

BATCH = 1000
_TRIES = 20

_SQL = queries("bulk")
_CHANGES = {
    "hold": _SQL["hold"],
    "quarantine": _SQL["quarantine"],
    "release": _SQL["release"],
    "retry": _SQL["retry"],
    "delete": _SQL["delete"],
    "set": _SQL["set"],
}


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to the rows that `where` matches, and by whom.

    `action` is hold, quarantine, release, retry, delete or set; `hold` is in seconds.
    """

    action: str
    where: str
    who: str
    reason: str | None = None
    hold: float | None = None
    quarantine: str | None = None
    priority: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)

    def details(self) -> dict[str, Any]:
        """What the audit table keeps of it."""
        names = ("reason", "hold", "quarantine", "priority", "metadata", "unset")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def failing(self) -> bool:
        """Whether rows on which the condition fails are changed as well: a hold takes them."""
        return self.action in ("hold", "quarantine")


_Found = tuple[list[int], list[int], dict[int, str]]  # rows looked at, to change, errors by id


class Bulk:
    """Changes over a connection of its own. Raises StoreUnavailable when it opens."""

    def __init__(self, uri: str) -> None:
        self._db = connect_operator(uri)
        self.faults: list[Fault] = []

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def count(self, where: str, failing: bool = False) -> int:
        """How many rows the condition matches now; with `failing` also those on which it fails.

        Afterwards `faults` tells of the latter.
        """

        def run(texts: list[str]) -> int:
            query = _SQL["count"].fill(where=texts[0])
            row = self._db.execute(query, {}).fetchone()
            return int(row["count"]) if row else 0

        condition = Condition("the condition", where)
        rows, self.faults = reading(self._db, [condition], "true", run, [failing])
        return rows

    def apply(
        self, change: Change, done: Callable[[int], bool], batch: int = BATCH, about: int = 0
    ) -> int:
        """Change batch after batch and return the number of rows.

        `done` is told of the rows of every batch that is committed; when it returns False, no
        further batch begins. A row is changed only if the condition still holds for it; one on
        which it fails is taken by a hold and left by the others. It rests
        between the batches, as the mail that flows comes first: long, if `about` so many rows are
        done in a short time nevertheless, else as long as it works.
        """
        row = self._db.execute(
            _SQL["begin"],
            {
                "who": change.who,
                "action": change.action,
                "condition": change.where,
                "details": json.dumps(change.details()),
            },
        ).fetchone()
        audit = row["id"] if row else None
        total = after = failures = 0
        pace = Pace(about / batch)
        while True:
            began = time.monotonic()
            try:
                find = self._find_guarded if failures else self._find
                page, ids, errors = find(change, after, batch)
                if not page:
                    break
                rows = self._batch(change, ids, errors, audit) if ids else 0
            except psycopg.Error as error:
                failures += 1
                if not about_a_row(error) or failures > _TRIES:
                    raise
                continue
            total += rows
            after = page[-1]
            if not done(rows):
                return total
            if len(page) == batch:
                time.sleep(pace.rest(time.monotonic() - began))
        self._db.execute(_SQL["finish"], {"audit": audit})
        if change.action in ("release", "retry"):
            self._db.execute(NOTIFY)
        return total

    def _find(self, change: Change, after: int, batch: int) -> _Found:
        query = _SQL["batch"].where(change.where)
        found = self._db.execute(query, {"after": after, "batch": batch}).fetchall()
        ids = [row["id"] for row in found]
        return ids, ids, {}

    def _find_guarded(self, change: Change, after: int, batch: int) -> _Found:
        query = _SQL["batch"].where("true")
        found = self._db.execute(query, {"after": after, "batch": batch}).fetchall()
        page = [row["id"] for row in found]
        params = {"condition": change.where, "ids": page}
        tried = self._db.execute(_SQL["tried"], params).fetchall()
        errors = {row["id"]: row["error"] for row in tried if row["error"]}
        ids = [row["id"] for row in tried if change.failing or not row["error"]]
        return page, ids, errors

    def _batch(
        self, change: Change, ids: list[int], errors: dict[int, str], audit: int | None
    ) -> int:
        where = bracketed(change.where)
        if errors:
            where = f"CASE WHEN %(errors)s::jsonb ? id::text THEN {change.failing} ELSE {where} END"
        query = _CHANGES[change.action].fill(where=where)
        params = {
            "ids": ids,
            "errors": json.dumps(errors),
            "who": change.who,
            "reason": change.reason,
            "hold": change.hold,
            "quarantine": change.quarantine,
            "priority": change.priority,
            "metadata": json.dumps(change.metadata),
            "unset": change.unset,
        }
        for chance in range(_TRIES):
            try:
                with self._db.transaction():
                    rows = self._db.execute(query, params).rowcount
                    self._db.execute(_SQL["progress"], {"audit": audit, "rows": rows})
                return rows
            except (pg_errors.SerializationFailure, pg_errors.DeadlockDetected):
                time.sleep(0.01 * chance)  # a row moved to another partition meanwhile
        raise StoreUnavailable("a batch lost too many races")
