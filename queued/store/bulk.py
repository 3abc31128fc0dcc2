"""Changes to many rows, in batches that each commit, with an entry in the audit table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psycopg import errors as pg_errors

from queued.db import connect_operator
from queued.errors import StoreUnavailable
from queued.listen import NOTIFY
from queued.pace import Pace
from queued.store.queries import escaped, queries

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


class Bulk:
    """Changes over a connection of its own. Raises StoreUnavailable when it opens."""

    def __init__(self, uri: str) -> None:
        self._db = connect_operator(uri)

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def count(self, where: str) -> int:
        """How many rows the condition matches now."""
        query = _SQL["count"].replace("{where}", escaped(where))
        row = self._db.execute(query.encode(), {}).fetchone()
        return int(row["count"]) if row else 0

    def apply(
        self, change: Change, done: Callable[[int], bool], batch: int = BATCH, about: int = 0
    ) -> int:
        """Change batch after batch and return the number of rows.

        `done` is told of the rows of every batch that is committed; when it returns False, no
        further batch begins. A row is changed only if the condition still holds for it. It rests
        between the batches, as the mail that flows comes first: long, if `about` so many rows are
        done in a short time nevertheless, else as long as it works.
        """
        where = escaped(change.where)
        row = self._db.execute(
            _SQL["begin"].encode(),
            {
                "who": change.who,
                "action": change.action,
                "condition": change.where,
                "details": json.dumps(change.details()),
            },
        ).fetchone()
        audit = row["id"] if row else None
        total = after = 0
        pace = Pace(about / batch)
        find = _SQL["batch"].replace("{where}", where).encode()
        while True:
            began = time.monotonic()
            found = self._db.execute(find, {"after": after, "batch": batch}).fetchall()
            ids = [row["id"] for row in found]
            if not ids:
                break
            rows = self._batch(change, where, ids, audit)
            total += rows
            after = ids[-1]
            if not done(rows):
                return total
            if len(ids) == batch:
                time.sleep(pace.rest(time.monotonic() - began))
        self._db.execute(_SQL["finish"].encode(), {"audit": audit})
        if change.action in ("release", "retry"):
            self._db.execute(NOTIFY.encode())
        return total

    def _batch(self, change: Change, where: str, ids: list[int], audit: int | None) -> int:
        query = _CHANGES[change.action].replace("{where}", where).encode()
        params = {
            "ids": ids,
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
                    self._db.execute(_SQL["progress"].encode(), {"audit": audit, "rows": rows})
                return rows
            except (pg_errors.SerializationFailure, pg_errors.DeadlockDetected):
                time.sleep(0.01 * chance)  # a row moved to another partition meanwhile
        raise StoreUnavailable("a batch lost too many races")
