"""Apply `sql/migrations/*.sql` in order, each once, under an advisory lock."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import LiteralString

import psycopg

from pgmta.errors import MigrationError, StoreUnavailable
from pgmta.postgres.faults import lost_race
from pgmta.postgres.locate import writable
from pgmta.postgres.notify import NOTIFY
from pgmta.postgres.pooler import forbid_pooler
from pgmta.store.cycles import Cycles
from pgmta.store.daemons import others
from pgmta.store.obstacles import refuse_obstacles
from pgmta.store.schema import migrations

_LOCK = 0x506F737465726E  # "Postern", the former name: earlier versions take the same lock
_SCHEMA = "0011_schema.sql"
"""The migration that moves everything from schema public to schema pgmta."""
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
_SIGN = """
CREATE TABLE public.schema_migrations (
    name text PRIMARY KEY,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE public.schema_migrations IS 'The queue is in schema pgmta. Versions from before '
    'that read this table, and make no second queue here. Drop it when no host has them.';
INSERT INTO public.schema_migrations VALUES ('0011_schema.sql', 'see pgmta.schema_migrations');
GRANT SELECT ON public.schema_migrations TO PUBLIC;
"""
"""A history with which earlier versions refuse the database as newer than they are."""
_MINIMUM = 150000
_PATIENCE = "5s"
_TRIES, _PAUSE = 30, 1.0  # of a migration that lost a race, and seconds between them
# In the order of submit(), so that no submission is ended: what it reads before it writes messages,
# messages, queue, the others.
_TABLES = """
SELECT string_agg(format('%I.%I', nspname, relname), ', ' ORDER BY
    array_position(
        '{submit_settings,idempotency_keys,message_chunks,messages,queue}', relname::text
    ), relname)
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = current_schema() AND relkind IN ('r', 'p') AND NOT relispartition
"""
_HOLDERS = """
SELECT pid, usename, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND (classid::bigint << 32 | objid::bigint) = %s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_FOREIGN = """
SELECT maker::regrole::text, maker = nspowner AND us.rolsuper
FROM pg_catalog.pg_namespace
CROSS JOIN LATERAL (
    SELECT nspowner AS maker UNION ALL
    SELECT grantee FROM pg_catalog.aclexplode(nspacl)
    WHERE privilege_type = 'CREATE' AND grantee <> nspowner
) AS makers
LEFT JOIN pg_catalog.pg_roles AS role ON role.oid = maker
JOIN pg_catalog.pg_roles AS us ON us.rolname = current_user
WHERE nspname = 'pgmta' AND NOT coalesce(role.rolsuper OR role.oid = us.oid
    OR NOT us.rolsuper AND maker = nspowner AND pg_catalog.pg_has_role(role.oid, 'USAGE'), false)
"""


def migrate(
    uri: str, warn: Callable[[str], None] = lambda _: None, *, while_daemons_run: bool = False
) -> list[str]:
    """Bring the database up to date and return the names of the applied migrations.

    `warn` gets the warnings of PostgreSQL with their hints, such as of roles that could not be
    made. With `while_daemons_run` daemons of another version are no reason to refuse.

    Several processes may call it at once. Raises StoreUnavailable. Raises MigrationError if an
    applied file was changed since; if the database is newer; if daemons of another version live;
    if schema pgmta has objects of another program; or if PostgreSQL is older than 15.
    """
    try:
        with psycopg.connect(
            writable(uri), autocommit=True, application_name="pgmta migrate"
        ) as db:
            forbid_pooler(db, {"client_min_messages": "warning"})  # the lock is the session's
            if db.info.server_version < _MINIMUM:
                version = db.info.parameter_status("server_version")
                raise MigrationError(f"PostgreSQL 15 or newer is needed, this is {version}")
            db.add_notice_handler(lambda notice: warn(_words(notice)))
            _take_turn(db, warn)
            cycles = Cycles(writable(uri), db.info.backend_pid)
            return _apply(db, cycles, warn, while_daemons_run)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(str(error).strip()) from error


def _take_turn(db: psycopg.Connection, warn: Callable[[str], None]) -> None:
    """Wait for the lock of migrations; warn of its holder after a while.

    Any login may take it, so a session that never migrates may have it.
    """
    db.execute("SELECT set_config('lock_timeout', %s, false)", (_PATIENCE,))
    try:
        db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    except psycopg.errors.LockNotAvailable:
        holders = db.execute(_HOLDERS, (_LOCK,)).fetchall()
        names = ", ".join(f"pid {pid} (role {role}, {name})" for pid, role, name in holders)
        warn(f"waits for the lock of migrations, which this session has: {names or 'none by now'}")
        db.execute("SET lock_timeout = 0")
        db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    db.execute("RESET lock_timeout")


def _apply(
    db: psycopg.Connection, cycles: Cycles, warn: Callable[[str], None], while_daemons_run: bool
) -> list[str]:
    wanted = migrations()
    histories = _histories(db)
    home = next(iter(histories), "")
    _refuse_foreign_schema(db, histories)
    known = _known(db, home)
    if unknown := sorted(set(known) - set(wanted)):
        raise MigrationError(f"the database is newer than this pgmta: it has {unknown[-1]}")
    pending = [name for name in wanted if name not in known]
    moves = home == "public" and _SCHEMA in pending
    if moves or (not home and _SCHEMA in wanted):
        _look_in(db, "pg_catalog")
        refuse_obstacles(db, set(known), _SCHEMA if moves else pending[0])
    if known and pending and not while_daemons_run:
        _look_in(db, home)
        _refuse_under_daemons(db, pending)
    if not home and _SCHEMA in wanted:
        home = "pgmta"
        if not _is_there(db, "to_regnamespace('pgmta')"):
            db.execute("CREATE SCHEMA pgmta")
    _look_in(db, home or "public")
    if not histories:  # it takes the right to create tables even if there is one
        db.execute(_TABLE)
    if "public" in histories[1:]:
        warn(
            "schema public has a second queue, which an earlier version has made: pgmta does not "
            "send its mail. Send it with that version, and drop the queue"
        )
    # one transaction for the move: if it fails, earlier versions work as before
    with db.transaction() if moves else nullcontext():
        for name, text in wanted.items():
            checksum = hashlib.sha256(text.encode()).hexdigest()
            if name not in known:
                early = home == "pgmta" and name < _SCHEMA
                text = _renamed(text) if early else text
                _run(db, cycles, name, text, checksum, quiet=early, busy=while_daemons_run)
                if name == _SCHEMA:
                    _warn_of_makers(db, warn)
            elif known[name] != checksum:
                raise MigrationError(f"{name} was changed after it had been applied")
        if moves:
            _leave_sign(db, warn)
    return pending


def _known(db: psycopg.Connection, home: str) -> dict[str, str]:
    """Return the checksums of the applied migrations by name."""
    if not home:
        return {}
    history = f"SELECT name, checksum FROM {home}.schema_migrations"  # noqa: S608 a schema of ours
    return dict(db.execute(history.encode()).fetchall())


def _run(
    db: psycopg.Connection,
    cycles: Cycles,
    name: str,
    text: str,
    checksum: str,
    *,
    quiet: bool,
    busy: bool,
) -> None:
    """Apply one migration; `quiet` without warnings, because a later one repeats them.

    Daemons and operators lock tables in other orders, so it may lose a race. Then it takes the
    locks before it does anything. On a `busy` database it does so at once.
    """
    for left in reversed(range(_TRIES)):
        try:
            with db.transaction():
                if busy or left < _TRIES - 1:
                    _lock_tables(db, cycles)
                if quiet:
                    db.execute("SET LOCAL client_min_messages = error")
                db.execute(text.encode())
                if name == _SCHEMA:
                    _look_in(db, "pgmta")  # functions of strangers in public have the same names
                history = "INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)"
                db.execute(history, (name, checksum))
                _notify_workers(db)
        except psycopg.OperationalError as error:
            if not (lost_race(error) or isinstance(error, psycopg.errors.LockNotAvailable)):
                raise
            if not left:
                raise _lost(name, error, cycles) from error
            time.sleep(_PAUSE)
        except psycopg.Error as error:
            raise MigrationError(f"{name} is not applied: {_words(error.diag) or error}") from error
        else:
            return


def _lock_tables(db: psycopg.Connection, cycles: Cycles) -> None:
    """Lock all tables of the queue; a statement that keeps one and waits for another is ended.

    Raises LockNotAvailable if another transaction keeps one for long.
    """
    found = db.execute(_TABLES).fetchone()
    if found and found[0]:
        db.execute("SELECT set_config('lock_timeout', %s, true)", (_PATIENCE,))
        with cycles.ended():
            db.execute(f"LOCK TABLE {found[0]} IN ACCESS EXCLUSIVE MODE".encode())
        db.execute("SELECT set_config('lock_timeout', '0', true)")


def _lost(name: str, error: psycopg.Error, cycles: Cycles) -> MigrationError:
    """Return the error of a migration that lost its last race, with the right that would help."""
    text = f"{name} is not applied: {_words(error.diag) or error}, {_TRIES} times"
    if cycles.refused:
        text += (
            f". It may not cancel statements of role {', '.join(sorted(cycles.refused))}. "
            "GRANT pg_signal_backend to the role that migrates, or migrate as a superuser"
        )
    return MigrationError(text)


def _leave_sign(db: psycopg.Connection, warn: Callable[[str], None]) -> None:
    """Leave a table in schema public that keeps earlier versions from making a queue there."""
    try:
        with db.transaction():
            db.execute(_SIGN)
    except psycopg.errors.InsufficientPrivilege:
        warn(
            "schema public got no table schema_migrations that warns earlier versions, because "
            "the right to create one is missing: remove their queuectl from every host"
        )


def _words(notice: psycopg.errors.Diagnostic) -> str:
    texts = (notice.message_primary, notice.message_detail, notice.message_hint)
    return ". ".join(text for text in texts if text)


def _look_in(db: psycopg.Connection, path: str) -> None:
    db.execute("SELECT set_config('search_path', %s, false)", (path,))


def _histories(db: psycopg.Connection) -> list[str]:
    """Return the schemas that have a history of ours: pgmta, then public.

    Other programs may have tables of the same names in `public`, and ours may have left a sign.
    """
    found = []
    for schema in ("pgmta", "public"):
        table = f"{schema}.schema_migrations"
        columns = db.execute(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(%s)"
            " AND attname IN ('name', 'checksum', 'applied_at')",
            (table,),
        ).fetchone()
        if columns != (3,):
            continue
        ours = f"SELECT FROM {table} WHERE name = '0001_queue.sql'"
        if schema == "pgmta" or db.execute(ours.encode()).fetchone() is not None:
            found.append(schema)
    return found


def _refuse_foreign_schema(db: psycopg.Connection, histories: list[str]) -> None:
    """Raise MigrationError if others may create functions in schema pgmta.

    Our statements look there, and would run these functions with our rights.
    """
    found = db.execute(_FOREIGN).fetchone()
    if found is None:
        return
    maker, may_migrate = found
    if "pgmta" in histories and may_migrate:
        raise MigrationError(
            f"schema pgmta belongs to role {maker}, whose functions would run with the rights of "
            f"a superuser. Migrate with a login of {maker}."
        )
    raise MigrationError(
        f"schema pgmta is there already, and role {maker} may create objects in it. "
        "Migrate as the owner of the schema, and revoke CREATE from others. "
        "If no pgmta made it, drop it."
    )


def _warn_of_makers(db: psycopg.Connection, warn: Callable[[str], None]) -> None:
    if db.execute("SELECT condition_path()").fetchone() == ("pgmta",):
        warn(
            "roles beside the owner of schema pgmta may create objects in schema public: "
            "conditions have to write public.NAME (REVOKE CREATE ON SCHEMA public FROM PUBLIC)"
        )


def _renamed(text: str) -> str:
    """Return a migration from before the schema pgmta, for a new database: with the names of today.

    `public` may belong to other programs there.
    """
    text = text.replace("public.", "pgmta.").replace("search_path = public", "search_path = pgmta")
    return text.replace("postern", "pgmta").replace("Postern", "pgmta")


def _is_there(db: psycopg.Connection, expression: LiteralString) -> bool:
    row = db.execute(f"SELECT {expression} IS NOT NULL").fetchone()
    return bool(row and row[0])


def _refuse_under_daemons(db: psycopg.Connection, pending: list[str]) -> None:
    """Raise MigrationError if daemons run that were not written for the schema after `pending`."""
    if found := others(db, pending[-1]):
        lines = "\n".join(f"  {each}" for each in found)
        raise MigrationError(
            f"{pending[0]} is not applied, because daemons of another version run on this "
            "database:\n"
            f"{lines}\n"
            "Stop them first; one that has crashed counts for a minute. With --while-daemons-run "
            "they go on without taking mail until they are replaced."
        )


def _notify_workers(db: psycopg.Connection) -> None:
    """Empty each claim that was composed before this migration, and wake idle workers."""
    if _is_there(db, "to_regclass('rules_version')"):
        db.execute("UPDATE rules_version SET version = version + 1")
        db.execute(NOTIFY)
