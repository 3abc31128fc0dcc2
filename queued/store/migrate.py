"""Apply `sql/migrations/*.sql` in order, each once, under an advisory lock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.resources import files

import psycopg

from queued.db import writable
from queued.errors import MigrationError, StoreUnavailable

_LOCK = 0x506F737465726E  # "Postern"
_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE schema_migrations IS 'Which of sql/migrations have been applied.';
COMMENT ON COLUMN schema_migrations.name IS 'File name.';
COMMENT ON COLUMN schema_migrations.checksum IS 'SHA-256 of the file when it was applied.';
COMMENT ON COLUMN schema_migrations.applied_at IS 'When it was applied.';
"""
_MINIMUM = 150000


def migrations() -> dict[str, str]:
    """Text of every migration by file name, in the order in which they are applied."""
    folder = files("sql") / "migrations"
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def migrate(uri: str, warn: Callable[[str], None] = lambda _: None) -> list[str]:
    """Bring the database up to date and return the names of what was applied.

    `warn` is told of what PostgreSQL warns, such as of roles that could not be made.

    Safe to run from several places at once. Raises StoreUnavailable, or MigrationError where an
    applied file was changed since, the database is newer, or PostgreSQL is older than 15.
    """
    try:
        with psycopg.connect(
            writable(uri), autocommit=True, application_name="postern migrate"
        ) as db:
            if db.info.server_version < _MINIMUM:
                version = db.info.parameter_status("server_version")
                raise MigrationError(f"PostgreSQL 15 or newer is needed, this is {version}")
            db.execute("SET client_min_messages = warning")
            db.add_notice_handler(lambda notice: warn(str(notice.message_primary)))
            db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            return _apply(db)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(str(error).strip()) from error


def _apply(db: psycopg.Connection) -> list[str]:
    db.execute(_TABLE)
    known: dict[str, str] = dict(
        db.execute("SELECT name, checksum FROM schema_migrations").fetchall()
    )
    wanted = migrations()
    if unknown := sorted(set(known) - set(wanted)):
        raise MigrationError(f"the database is newer than this Postern: it has {unknown[-1]}")
    applied = []
    for name, text in wanted.items():
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if name not in known:
            with db.transaction():
                db.execute(text.encode())
                db.execute(
                    "INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)",
                    (name, checksum),
                )
            applied.append(name)
        elif known[name] != checksum:
            raise MigrationError(f"{name} was changed after it had been applied")
    return applied
