"""Sessions of PostgreSQL that are fit for pgmta: which settings, which schema, and no pooler."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from pgmta.errors import FormerDatabase
from pgmta.features import features, folder
from pgmta.shipped import shipped

SETTINGS: Final = {
    "client_encoding": "UTF8",  # in which statements, conditions and arrays are sent
    # how values are written: psycopg misreads some forms, and can't read others
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "array_nulls": "on",
    # the meaning of statements, of those in functions too
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "session_replication_role": "origin",  # no trigger is left out
    "default_table_access_method": "heap",  # for new partitions
    # Statements, and the trigger that removes bodies, rely on seeing rows that others committed.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "synchronous_commit": "on",  # where it is off: a commit is a promise
    # no limits: code that wants one sets it for its own session
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "exit_on_error": "off",
    "client_min_messages": "warning",  # a warning says that a commit did not wait for its standby
}
"""What every session of pgmta relies on, whatever the server, database or role has.

`default_transaction_read_only` is not here: a server that takes no writes is away. `TimeZone` is
not either, because conditions of operators may mean that of the database.
"""

LOOK_IN_PGMTA: Final = """
SELECT set_config('search_path', CASE WHEN EXISTS (
    SELECT FROM pg_namespace AS place, LATERAL (
        SELECT nspowner UNION SELECT grantee FROM aclexplode(nspacl) WHERE privilege_type = 'CREATE'
    ) AS makers (maker)
    WHERE nspname = 'public' AND pg_has_role(
        CASE maker WHEN 0 THEN NULL WHEN to_regrole('pg_database_owner') THEN (
            SELECT datdba FROM pg_database WHERE datname = current_database()) ELSE maker END,
        (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE') IS NOT TRUE
) OR has_schema_privilege(to_regnamespace('pgmta'), 'USAGE') IS NOT TRUE
THEN 'pgmta, pg_temp' ELSE 'pgmta, public, pg_temp' END, false)
"""
"""The statement that sets the search_path of a session, as pgmta.condition_path() says it.

An operator's condition may name functions in `public`. If a role beside the owner of our tables
may create objects there, the path is without `public`. PostgreSQL prefers a function whose
arguments fit better to its own, and the session would run it. The path is without `public` too
if the login may not use schema pgmta: our names would mean tables of others there. Temporary tables
come last: a function that a condition calls may make one with the name of ours.
"""

PID: Final = "SELECT pg_catalog.pg_backend_pid()"
"""Asks which process answers, for `check_pooler`."""

AS_STORED = (
    "SELECT pg_catalog.set_config('client_encoding',"
    " pg_catalog.current_setting('server_encoding'), false)"
)
"""The statement for a session that has the characters of its database alone."""

_POOLER_PROBLEM = (
    "the database is reached through a connection pooler, which pgmta's own connections can't use: "
    "name PostgreSQL itself in environment.database.uri; only SQL functions work behind a pooler"
)


_MAX_PID = 1 << 22  # that Linux can give; other systems give less


@cache
def baseline() -> str:
    """Return the name under which a database notes that it has run this program's schema.

    It has a digest of the files without their comments, so a changed comment changes nothing. A
    database with other features has another schema.
    """
    digest = hashlib.sha256()
    files = sorted((shipped("sql") / "schema").glob("*.sql"))
    for name, feature in features().items():
        files += [folder(name) / file for file in feature.schema]
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        statements = (line for line in lines if not line.lstrip().startswith("--"))
        digest.update("\n".join((file.name, *statements)).encode())
    return f"0001_schema_{digest.hexdigest()[:12]}"


def in_utf8(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the database has the encoding UTF8."""
    return connection.info.parameter_status("server_encoding") == "UTF8"


def has_octets(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the database has the encoding SQL_ASCII, which knows octets alone."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


def fitting(own: Mapping[str, str] | None = None, path: str = "pgmta, pg_temp") -> bytes:
    """Return the statements that give a new session SETTINGS, its own settings and a search_path.

    They set what differs, and leave out what this version of PostgreSQL does not know.
    synchronous_commit stays as it is, unless it is off.
    """
    wanted = {**SETTINGS, **(own or {})}
    values = ", ".join(f"('{name}', '{value}')" for name, value in wanted.items())
    return f"""SET search_path = {path};
SELECT set_config(name, value, false) FROM (VALUES {values}) AS wanted (name, value)
WHERE current_setting(name, true) <> value
    AND (name <> 'synchronous_commit' OR 'off' IN (value, current_setting(name)));
""".encode()  # noqa: S608 constants of this program


def fit(
    connection: psycopg.Connection[Any],
    own: Mapping[str, str] | None = None,
    path: str = "pgmta, pg_temp",
) -> None:
    """Run `fitting` in a new session. Raises OperationalError, also if a pooler stands before it.

    Before the path is narrow, a session calls functions with the prefix pg_catalog only.
    """
    check_pooler(connection)
    cursor = connection.cursor(row_factory=tuple_row)
    for (pid,) in cursor.execute(PID):
        check_pooler(connection, pid)
    try:
        cursor.execute(fitting(own, path), prepare=False)
    except psycopg.errors.InsufficientPrivilege as error:
        raise unfit(error) from error


def unfit(error: psycopg.Error) -> psycopg.OperationalError:
    """Return the error of a session that may not have one of SETTINGS."""
    return psycopg.OperationalError(
        f"{error.diag.message_primary}: the server, the database or the login has another value "
        f"than {SETTINGS['session_replication_role']}, which switches triggers off; reset it there"
    )


def as_stored(connection: psycopg.BaseConnection[Any]) -> dict[str, str]:
    """Return the encoding of a session that runs `sql/schema`.

    Comments there have characters that a database may lack, and their octets go in as they are. A
    database that `has_octets` takes UTF8, because psycopg returns its texts as bytes else.
    """
    stored = connection.info.parameter_status("server_encoding") or "UTF8"
    return {"client_encoding": "UTF8" if has_octets(connection) else stored}


class Pooled(psycopg.OperationalError):
    """A pooler stands before the server."""


def check_pooler(connection: psycopg.BaseConnection[Any], pid: int | None = None) -> None:
    """Raise Pooled if the connection was given another process than the one that answers it.

    `pid` is what pg_backend_pid() says. Behind a pooler the session belongs to other clients too.
    A question waits there until a session is free, so first the number itself is looked at:
    poolers give random ones.
    """
    given = connection.info.backend_pid
    if pid not in (None, given) or not 0 < given <= _MAX_PID:
        raise Pooled(_POOLER_PROBLEM)


def refuse_former(migrations: Collection[str]) -> None:
    """Raise FormerDatabase if a database with these migrations was made from another `sql/schema`.

    Nothing brings such a database to this schema, because no version is released yet.
    """
    if migrations and baseline() not in migrations:
        raise FormerDatabase
