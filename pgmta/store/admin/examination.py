"""Reads what `queuectl doctor` judges: settings, activity, tables and the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, LiteralString

from pgmta.postgres import blockers
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import Statement, queries

_SQL = queries("examination")

TIME_LIMITS: Final[Sequence[LiteralString]] = (
    "SET statement_timeout = '10s'",
    "SET lock_timeout = '1s'",
)
"""Settings of a session that examines."""

type Question = Literal[
    "settings",
    "roles_async",
    "missing_rights",
    "unidentified",
    "connections",
    "delivers",
    "places",
    "held",
    "holders",
    "standbys",
    "sees_all",
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


class Examination:
    """Asks one question after the other, over a connection with TIME_LIMITS."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db

    async def ask(self, name: Question, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a question of examination.sql. Raises psycopg.Error."""
        return await self.run(_SQL[name], **values)

    async def run(self, statement: Statement, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement of a feature. Raises psycopg.Error."""
        return await self._db.rows(statement, values or None)

    async def write(self) -> None:
        """Write 1 MB on the server, and take it back. Raises psycopg.Error, also of a full disk."""
        async with self._db.transaction(force_rollback=True):
            await self._db.execute("CREATE TEMPORARY TABLE room (octets bytea) ON COMMIT DROP")
            await self._db.execute(_SQL["fill"])

    @property
    def backend(self) -> int:
        """The process of the server that answers."""
        return self._db.info.backend_pid

    async def blockers(self) -> list[dict[str, Any]]:
        """Return the sessions that block others (`blockers.query`). Raises psycopg.Error."""
        return await self._db.rows(blockers.query())

    @property
    def version(self) -> int:
        """The version of the server, such as 180001."""
        return self._db.info.server_version
