"""Reads what `queuectl doctor` judges: settings, activity, tables and the queue."""

from __future__ import annotations

from typing import Any

import psycopg

from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import queries

_SQL = queries("examination")
_MOST = 10_000  # milliseconds of a question


class Examination(OperatorLink):
    """Asks one question after the other, each with a time limit.

    Raises StoreUnavailable when it opens.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._db.execute(f"SET statement_timeout = {_MOST}")

    def ask(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a question of examination.sql. Raises psycopg.Error."""
        return self._db.execute(_SQL[name], values or None).fetchall()

    @property
    def version(self) -> int:
        """The version of the server, such as 180001."""
        return self._db.info.server_version

    @property
    def connection(self) -> psycopg.Connection[dict[str, Any]]:
        """The connection, for checks of other modules of the store."""
        return self._db
