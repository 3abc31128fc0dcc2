"""Sessions of PostgreSQL that are fit for pgmta: which server, which schema, and no pooler."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from functools import cache
from typing import Any

import psycopg

from pgmta.errors import FormerDatabase
from pgmta.shipped import shipped

_NARROW = "SET search_path = pgmta, pg_temp"
_CONDITIONS = """
SELECT set_config('search_path', CASE WHEN EXISTS (
    SELECT FROM pg_namespace AS place, LATERAL (
        SELECT nspowner UNION SELECT grantee FROM aclexplode(nspacl) WHERE privilege_type = 'CREATE'
    ) AS makers (maker)
    WHERE nspname = 'public' AND pg_has_role(
        CASE maker WHEN 0 THEN NULL WHEN to_regrole('pg_database_owner') THEN (
            SELECT datdba FROM pg_database WHERE datname = current_database()) ELSE maker END,
        (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE') IS NOT TRUE
) THEN 'pgmta' ELSE 'pgmta, public' END, false)
"""
LOOK_IN_PGMTA = (_NARROW, _CONDITIONS)
"""Statements that set the search_path of a session of pgmta, as pgmta.condition_path() says it.

An operator's condition may name functions in `public`. If a role beside the owner of our tables
may create objects there, the path is without `public`. PostgreSQL prefers a function whose
arguments fit better to its own, and the session would run it. Before these statements a session
calls functions with the prefix pg_catalog only.
"""

AS_UTF8 = "SET client_encoding = 'UTF8'"
"""The statement for a session that is not `in_utf8`, because our statements and conditions are."""

AS_STORED = (
    "SELECT pg_catalog.set_config('client_encoding',"
    " pg_catalog.current_setting('server_encoding'), false)"
)
"""The statement for a session that has the characters of its database alone."""

_POOLER = (
    "the database is reached through a connection pooler, which pgmta's own connections can't use: "
    "name PostgreSQL itself in environment.database.uri; only SQL functions work behind a pooler"
)


@cache
def baseline() -> str:
    """Return the name under which a database notes that it has run this program's `sql/schema`.

    It has a digest of the files without their comments, so a changed comment changes nothing.
    """
    digest = hashlib.sha256()
    for file in sorted((shipped("sql") / "schema").glob("*.sql")):
        lines = file.read_text(encoding="utf-8").splitlines()
        statements = (line for line in lines if not line.lstrip().startswith("--"))
        digest.update("\n".join((file.name, *statements)).encode())
    return f"0001_schema_{digest.hexdigest()[:12]}"


def writable(uri: str) -> str:
    """Return the connection string with a request for a server that takes writes.

    It is added only if the string names several hosts and does not say which of them it wants.
    """
    given = psycopg.conninfo.conninfo_to_dict(uri)
    hosts = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")
    said = given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    if said or "," not in str(hosts):
        return uri
    return psycopg.conninfo.make_conninfo(uri, target_session_attrs="read-write")


def in_utf8(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the database has the encoding UTF8."""
    return connection.info.parameter_status("server_encoding") == "UTF8"


def has_octets(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the database has the encoding SQL_ASCII, which knows octets alone."""
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


def use_utf8(connection: psycopg.Connection[Any]) -> None:
    """Have a session that `has_octets` return texts, which psycopg returns as bytes else.

    Another one stays as it is: comments of the schema have characters that its database may lack.
    """
    if has_octets(connection):
        connection.execute(AS_UTF8)


def check_pooler(connection: psycopg.BaseConnection[Any], pid: int) -> None:
    """Raise OperationalError if `pid` is not the process that the connection was given.

    `pid` is what pg_backend_pid() says. Behind a pooler the session belongs to other clients too.
    """
    if connection.info.backend_pid != pid:
        raise psycopg.OperationalError(_POOLER)


def refuse_former(migrations: Collection[str]) -> None:
    """Raise FormerDatabase if a database with these migrations was made from another `sql/schema`.

    Nothing brings such a database to this schema, because no version is released yet.
    """
    if migrations and baseline() not in migrations:
        raise FormerDatabase
