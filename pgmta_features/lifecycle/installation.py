"""The schema `lifecycle`: its text, and its installation and removal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from pgmta.errors import MigrationError, StoreUnavailable
from pgmta.postgres import blockers
from pgmta.postgres.fit_session import as_stored, fit
from pgmta.postgres.operator import LOCK_TIMEOUT_S
from pgmta.postgres.primary import writable
from pgmta.store.schema import migrations, mismatch

TOPICS = (
    "schema", "accounts", "actions", "tokens", "own_accounts", "bindings", "consumption", "jobs",
    "collect", "rights",
)  # fmt: skip
"""The files of the folder `schema`, in the order in which they run."""

_STATE = """
SELECT to_regclass('lifecycle.installation') IS NOT NULL, to_regnamespace('lifecycle') IS NOT NULL,
    pg_has_role(current_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgmta'), 'USAGE')
"""


def schema_text() -> str:
    """Return the statements that install the schema; they are one transaction's."""
    return "\n".join(schema_topic(name) for name in TOPICS)


def schema_topic(name: str) -> str:
    """Return the statements of one of TOPICS, for a session that looks in schema lifecycle."""
    file = Path(__file__).parent / "schema" / f"{name}.sql"
    return file.read_text(encoding="utf-8")


def install(uri: str) -> bool:
    """Install the schema; return False if it is there.

    Raises MigrationError if the login does not own the queue, or if the queue has another version.
    It is raised too if another program has a schema of that name. Raises StoreUnavailable and
    psycopg.Error.
    """
    with _transaction(uri) as db:
        installed, taken = _state(db)
        if installed:
            return False
        if taken:
            raise MigrationError("there is a schema lifecycle, which pgmta did not install")
        known = {name for (name,) in db.execute("SELECT name FROM pgmta.schema_migrations")}
        if problem := mismatch(list(migrations()), known):
            raise MigrationError(problem)
        db.execute(schema_text().encode())
    return True


def remove(uri: str) -> bool:
    """Remove the schema with all that is in it; return False if it is not there.

    Raises MigrationError while a table is bound or accounts or tokens exist, or if the login does
    not own the queue; StoreUnavailable; psycopg.Error.
    """
    with _transaction(uri) as db:
        installed, _ = _state(db)
        if not installed:
            return False
        db.execute("LOCK TABLE lifecycle.accounts, lifecycle.tokens IN ACCESS EXCLUSIVE MODE")
        for (table,) in db.execute("SELECT bound ->> 'table' FROM lifecycle.installation"):
            if table:
                raise MigrationError(f"{table} is bound: run `queuectl lifecycle unbind`")
        for table in ("accounts", "tokens"):
            query = f"SELECT count(*) FROM lifecycle.{table}"  # noqa: S608 one of two tables
            ((number,),) = db.execute(query.encode()).fetchall()
            if number:
                raise MigrationError(
                    f"lifecycle.{table} has {number} rows: delete them first, which withdraws their"
                    " mail"
                )
        db.execute("DROP SCHEMA lifecycle, lifecycle_bound CASCADE")
    return True


@contextmanager
def installed_transaction(uri: str) -> Iterator[psycopg.Connection]:
    """Lend a connection of the owner to a database with the schema; its block is one transaction.

    Raises MigrationError without the schema or as another login, StoreUnavailable.
    """
    with _transaction(uri) as db:
        installed, _ = _state(db)
        if not installed:
            raise MigrationError("there is no schema lifecycle: run `queuectl lifecycle install`")
        yield db


@contextmanager
def _transaction(uri: str) -> Iterator[psycopg.Connection]:
    """Open a connection whose block is one transaction. Raises StoreUnavailable."""
    try:
        with psycopg.connect(
            writable(uri), autocommit=True, application_name="pgmta lifecycle"
        ) as db:
            limit = {"lock_timeout": f"{LOCK_TIMEOUT_S * 1000:.0f}ms"}
            fit(db, as_stored(db) | limit, "pg_catalog")
            db.autocommit = False
            yield db
    except psycopg.OperationalError as error:
        raise StoreUnavailable(blockers.named(uri, error)) from error


def _state(db: psycopg.Connection) -> tuple[bool, bool]:
    """Return whether the schema is installed, and whether there is one. Raises MigrationError."""
    ((installed, taken, owner),) = db.execute(_STATE).fetchall()
    if owner is None:
        raise MigrationError("the database has no queue yet: run `queuectl database migrate`")
    if not owner:
        raise MigrationError("the login does not own the schema pgmta: log in as its owner")
    return installed, taken
