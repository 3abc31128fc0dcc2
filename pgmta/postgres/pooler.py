"""A connection pooler between pgmta and PostgreSQL, which pgmta's own connections can't use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import tuple_row

POOLER = (
    "the database is reached through a connection pooler, which pgmta's own connections can't use: "
    "name PostgreSQL itself in environment.database.uri; only SQL functions work behind a pooler"
)


def settings_unless_pooled(pid: int, settings: Mapping[str, str]) -> tuple[str, list[object]]:
    """Return an expression that sets `settings` for the session, and its parameters.

    `pid` is the process that the connection names. Behind a pooler it is not the server's: then the
    expression is null, and sets nothing, because the session belongs to other clients too.
    """
    calls = ", ".join("set_config(%s, %s, false)" for _ in settings)
    pairs = [part for pair in settings.items() for part in pair]
    return f"CASE WHEN pg_backend_pid() = %s THEN concat({calls}) END", [pid, *pairs]


def forbid_pooler(db: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Set `settings` for the session, or raise psycopg.OperationalError behind a pooler."""
    text, params = settings_unless_pooled(db.info.backend_pid, settings)
    with psycopg.ClientCursor(db, row_factory=tuple_row) as cursor:
        row = cursor.execute(f"SELECT {text}".encode(), params).fetchone()
    if row is None or row[0] is None:
        db.close()
        raise psycopg.OperationalError(POOLER)
