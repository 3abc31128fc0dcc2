"""Reads what `queuectl doctor` judges: settings, activity, tables and the queue."""

from __future__ import annotations

from typing import Any, Literal

from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import queries

_SQL = queries("examination")
_MOST = 10_000  # milliseconds of a question

type Question = Literal[
    "settings",
    "roles_async",
    "missing_rights",
    "missing_lifecycle_rights",
    "unidentified",
    "connections",
    "long_transactions",
    "sees_all",
    "prepared",
    "notifications",
    "slots",
    "bloat",
    "lost_times",
    "age",
    "invalid_indexes",
    "disabled_triggers",
    "unvacuumed",
    "clock",
    "missing_days",
    "event_triggers",
    "collation",
    "daemons",
    "oldest_due",
    "outcomes",
    "orphans",
    "lifecycle",
    "waiting_tokens",
    "collections",
    "spent_budgets",
    "reached",
    "schema",
]


class Examination(OperatorLink):
    """Asks one question after the other, each with a time limit.

    Raises StoreUnavailable when it opens.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._db.execute(f"SET statement_timeout = {_MOST}")

    def ask(self, name: Question, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a question of examination.sql. Raises psycopg.Error."""
        return self._db.execute(_SQL[name], values or None).fetchall()

    @property
    def version(self) -> int:
        """The version of the server, such as 180001."""
        return self._db.info.server_version
