"""Reads what `queuectl doctor` judges: settings, activity, tables and the queue."""

from __future__ import annotations

from typing import Any, Literal

from pgmta.postgres import blockers
from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import Statement, queries

_SQL = queries("examination")
_STATEMENT_TIMEOUT_MS = 10_000
_LOCK_TIMEOUT_MS = 1_000

type Question = Literal[
    "settings",
    "roles_async",
    "missing_rights",
    "unidentified",
    "connections",
    "delivers",
    "places",
    "held",
    "long_transactions",
    "sees_all",
    "prepared",
    "notifications",
    "slots",
    "bloat",
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
    "reached",
    "schema",
]


class Examination(OperatorLink):
    """Asks one question after the other, each with a time limit.

    Raises StoreUnavailable when it opens.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._db.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_MS}")
        self._db.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")

    def ask(self, name: Question, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a question of examination.sql. Raises psycopg.Error."""
        return self.run(_SQL[name], **values)

    def run(self, statement: Statement, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement of a feature. Raises psycopg.Error."""
        return self._db.execute(statement, values or None).fetchall()

    def write(self) -> None:
        """Write 1 MB on the server, and take it back. Raises psycopg.Error, also of a full disk."""
        with self._db.transaction(force_rollback=True):
            self._db.execute("CREATE TEMPORARY TABLE room (octets bytea) ON COMMIT DROP")
            self._db.execute(_SQL["fill"])

    @property
    def backend(self) -> int:
        """The process of the server that answers."""
        return self._db.info.backend_pid

    def blockers(self) -> list[dict[str, Any]]:
        """Return the sessions that block others (`blockers.query`). Raises psycopg.Error."""
        return self._db.execute(blockers.query()).fetchall()

    @property
    def version(self) -> int:
        """The version of the server, such as 180001."""
        return self._db.info.server_version
