"""The database that a configuration means, and the sessions there that are fit for pgmta."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psycopg

from pgmta.config.environment import Environment
from pgmta.errors import FormerDatabase, StoreUnavailable
from pgmta.postgres.embedded.database import directory_of, join, start
from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer

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

_POOLER = (
    "the database is reached through a connection pooler, which pgmta's own connections can't use: "
    "name PostgreSQL itself in environment.database.uri; only SQL functions work behind a pooler"
)

BASELINE = "0001_baseline.sql"
"""The first migration. A new database runs `sql/schema` instead."""

INHERITED = "PGMTA_DATABASE_URI"
"""Environment variable in which a parent gives its children the URI that it has resolved."""

DIRECTORY = "PGMTA_DATABASE_DIRECTORY"
"""Environment variable for the folder of the embedded PostgreSQL."""


def resolve(environment: Environment, role: str | None = None) -> str:
    """Return the URI of the database; start the embedded PostgreSQL if none is configured.

    A daemon gives its `role`: on the embedded server it logs in by that name, and keeps the server
    alive. Commands have no role and are the owner there. Raises StoreUnavailable if the embedded
    server does not start.
    """
    if environment.database.uri:
        return environment.database.uri
    directory = Path(os.environ.get(DIRECTORY) or environment.directory)
    if uri := os.environ.get(INHERITED):
        if DIRECTORY in os.environ:
            join(directory)
        return uri
    return start(directory, role, supervise=True) if role else start(directory)


def existing(environment: Environment) -> str:
    """Return the same for a command that makes no database.

    Raises StoreUnavailable also if the folder of the embedded server has none.
    """
    folder = environment.directory.resolve()
    named = environment.database.uri or INHERITED in os.environ or DIRECTORY in os.environ
    if not named and not EmbeddedServer(folder).exists():
        raise StoreUnavailable(
            f"environment.directory: no embedded PostgreSQL in {folder}; give the file of an "
            "installation by -c, or `queuectl migrate` makes one"
        )
    return resolve(environment)


def handed_down(uri: str) -> dict[str, str]:
    """Return environment variables by which `resolve` in a child returns the same URI."""
    directory = directory_of(uri)
    return {INHERITED: uri, **({DIRECTORY: str(directory)} if directory else {})}


def running(environment: Environment, role: str) -> str | None:
    """Return the URI of a database that runs already, None if the embedded one does not."""
    uri = environment.database.uri or os.environ.get(INHERITED)
    server = EmbeddedServer(environment.directory.resolve())
    return uri or (server.uri(DATABASE, role) if server.running() else None)


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


def check_pooler(connection: psycopg.BaseConnection[Any], pid: int) -> None:
    """Raise OperationalError if `pid` is not the process that the connection was given.

    `pid` is what pg_backend_pid() says. Behind a pooler the session belongs to other clients too.
    """
    if connection.info.backend_pid != pid:
        raise psycopg.OperationalError(_POOLER)


def refuse_former(migrations: Collection[str]) -> None:
    """Raise FormerDatabase if a database with these migrations lacks the baseline."""
    if migrations and BASELINE not in migrations:
        raise FormerDatabase
