"""Obstacles that keep the queue of a database from its move to schema pgmta."""

from __future__ import annotations

import psycopg

from pgmta.errors import MigrationError
from pgmta.store.queries import queries

_SHOWN = 20
_SQL = queries("obstacles")
_OF_ALL = ("taken", "schema")
"""Obstacles of a new database too."""
_OF_A_MOVE = (
    "public", "superuser", "owners", "columns", "constraints", "names", "texts", "roles",
)  # fmt: skip


def refuse_obstacles(db: psycopg.Connection, applied: set[str], migration: str) -> None:
    """Raise MigrationError if something keeps `migration` from making schema pgmta.

    `applied` are the migrations that the database has, none if it is new. Nothing is changed. The
    search_path is that of PostgreSQL alone, so that texts name the schema of every object.
    """
    last = max(applied, default="")[:4]
    known = _SQL["functions"].fill(until="%(last)s")
    coming = _SQL["functions"].fill(until="'0010'")
    found: dict[str, None] = {}
    for name in (*_OF_ALL, *(_OF_A_MOVE if applied else ())):
        filled = _SQL[name].fill(moving=_SQL["moving"], functions=known, coming=coming)
        for what, remedy in db.execute(filled, {"last": last}):
            found[f"  {what}: {remedy}"] = None
    if found:
        lines = [*found]
        if len(lines) > _SHOWN:
            lines = [*lines[:_SHOWN], f"  and {len(lines) - _SHOWN} more"]
        raise MigrationError(
            f"{migration} is not applied, and nothing has changed. Change this first:\n"
            + "\n".join(lines)
        )
