"""Sessions that keep others from tables and rows of pgmta, in words for operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from pgmta.features import SCHEMA, more_schemas
from pgmta.postgres import faults
from pgmta.postgres.fit_session import check_pooler
from pgmta.postgres.primary import writable

ASKING_SETTINGS: Final = {"statement_timeout": "2s", "lock_timeout": "1s"}
"""Run-time parameters of a session that asks."""

_QUERY = """
WITH waiting AS (
    SELECT l.pid, extract(epoch FROM clock_timestamp() - min(l.waitstart))::float8 AS seconds
    FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
    WHERE NOT l.granted AND a.datname = current_database() GROUP BY l.pid
), found AS (
    SELECT blocker, count(*) AS waiters, max(waiting.seconds) AS seconds
    FROM waiting, unnest(pg_blocking_pids(waiting.pid)) AS blocker
    WHERE blocker NOT IN (SELECT pid FROM waiting) GROUP BY blocker
    UNION ALL
    SELECT DISTINCT l.pid, 0, NULL::float8
    FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE l.granted AND l.locktype = 'relation' AND l.pid <> pg_backend_pid()
        AND l.pid NOT IN (SELECT pid FROM waiting) AND n.nspname = ANY ('{schemas}')
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
), blocking AS (
    SELECT blocker AS pid, sum(waiters)::integer AS waiters, max(seconds) AS seconds
    FROM found GROUP BY blocker
)
SELECT b.pid, b.waiters, coalesce(a.usename, a.backend_type, '') AS login,
    coalesce(nullif(a.application_name, ''), 'no name') AS application,
    coalesce(a.state, '') AS state,
    coalesce(extract(epoch FROM clock_timestamp() - a.xact_start)::float8, b.seconds) AS seconds
FROM blocking AS b LEFT JOIN pg_stat_activity AS a USING (pid)
ORDER BY b.waiters DESC, seconds DESC NULLS LAST, b.pid LIMIT 5
"""
_TOOK_TOO_LONG = frozenset(("55P03", "57014"))  # lock_not_available, query_canceled


@cache
def query() -> bytes:
    """Return the query who blocks whom: sessions for which others wait, and that wait for nobody.

    A session that keeps a table of pgmta to itself is there also while nobody waits for it. The
    process 0 stands for prepared transactions. `seconds` is the age of the transaction or, if this
    login may not see that, how long another session waits; it may be NULL.
    """
    return _QUERY.replace("{schemas}", f"{{{','.join([SCHEMA, *more_schemas()])}}}").encode()


def limited(error: BaseException) -> bool:
    """Return whether a time limit ended the statement, as another session's lock may have."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _TOOK_TOO_LONG


def described(row: Mapping[str, Any]) -> str:
    """Return a session that blocks, in words."""
    if not row["pid"]:
        return "a prepared transaction"
    seconds = row["seconds"]
    lasts = "" if seconds is None else f"for {seconds:.0f} s"
    parts = (row["application"], f"login {row['login']}", f"{row['state']} {lasts}".strip())
    return f"pid {row['pid']} ({', '.join(part for part in parts if part)})"


def remedy(row: Mapping[str, Any]) -> str:
    """Return what ends the session."""
    if not row["pid"]:
        return "SELECT gid FROM pg_prepared_xacts; then COMMIT PREPARED or ROLLBACK PREPARED"
    return f"end its transaction there, or SELECT pg_terminate_backend({row['pid']});"


def sentence(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence about the first of the sessions that block; '' if there is none."""
    for row in rows:
        return f"PostgreSQL runs, but {described(row)} holds locks that others need: {remedy(row)}"
    return ""


def named(uri: str, error: psycopg.Error) -> str:
    """Return the error in a line, with the session that blocks, asked over a new connection.

    Of an error that no time limit made, it is the whole text.
    """
    if not limited(error):
        return str(error).strip()
    blocker = ""
    with (
        suppress(psycopg.Error),
        psycopg.connect(
            writable(uri), autocommit=True, row_factory=dict_row,
            application_name="pgmta blockers",
        ) as db,
    ):  # fmt: skip
        check_pooler(db)
        for name, value in ASKING_SETTINGS.items():
            db.execute("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))
        db.execute("SET search_path = pg_catalog, pg_temp")
        blocker = sentence(db.execute(query()).fetchall())
    return ": ".join(part for part in (faults.one_line(error), blocker) if part)
