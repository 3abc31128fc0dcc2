"""Make the schema of a new database, or apply its missing migrations, under an advisory lock.

A new database runs `sql/schema` in one transaction, and has every migration then. A database of
another `sql/schema` is refused, because no version is released yet. From the first release on, an
older database runs each of `sql/migrations` that it lacks, each once and in order.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg

from pgmta.errors import FormerDatabase, MigrationError, StoreUnavailable
from pgmta.features import SCHEMA, more_schemas
from pgmta.postgres import blockers
from pgmta.postgres.faults import lost_race
from pgmta.postgres.fit_session import as_stored, fit, refuse_former
from pgmta.postgres.notify import NOTIFY
from pgmta.postgres.primary import writable
from pgmta.store.admin.daemons import others
from pgmta.store.schema import migrations, topics

_ADVISORY_LOCK = 0x70676D7461  # "pgmta" in ASCII
_MIN_SERVER_VERSION = 150000
_LOCK_TIMEOUT = "5s"
_MAX_TRIES, _RETRY_PAUSE_S = 30, 1.0  # of a migration that lost a race
# Locked in the order of submit(), so that no deadlock ends a submission: tables that it reads
# before it writes messages, then messages, queue and the others.
_TABLES = """
SELECT string_agg(format('%I.%I', nspname, relname), ', ' ORDER BY
    array_position(
        '{submit_settings,idempotency_keys,message_chunks,messages,queue}', relname::text
    ), relname)
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = 'pgmta' AND relkind IN ('r', 'p') AND NOT relispartition
"""
_FUNCTION = re.compile(
    rf"PL/pgSQL function ((?!(?:{'|'.join([SCHEMA, *more_schemas(), 'pg_catalog'])})\.)"
    r"[^\s.(]+\.[^(]+\(\)) line"
)
"""A function of others in the context of an error; ours have no schema there."""
_LOOK_INTERVAL_S = 0.1  # for a deadlock: PostgreSQL looks after 1 s, and may end the migration
_CYCLE = """
SELECT pid, coalesce(usename, 'of the server') FROM pg_stat_activity
WHERE pid = ANY (pg_blocking_pids(%(pid)s)) AND %(pid)s = ANY (pg_blocking_pids(pid))
"""
_HOLDERS = """
SELECT pid, usename, application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND (classid::bigint << 32 | objid::bigint) = %s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_MAKE = """
DO $$
BEGIN
    IF to_regnamespace('pgmta') IS NOT NULL THEN
        RETURN;
    ELSIF NOT has_database_privilege(current_database(), 'CREATE') THEN
        RAISE EXCEPTION 'role % may not create schema pgmta', current_user USING
            ERRCODE = 'insufficient_privilege',
            HINT = format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user);
    END IF;
    CREATE SCHEMA pgmta;
END $$;
SET LOCAL search_path = pgmta;
"""
_RENEW_CLAIMS = f"UPDATE rules_version SET version = nextval('versions'); {NOTIFY}"  # noqa: S608 a constant
"""Empties each claim that was composed before a migration, and wakes idle workers."""
_SEARCH_PATH = """
SELECT substr(each, length('search_path=') + 1)
FROM pg_db_role_setting, unnest(setconfig) AS each
WHERE setrole = 0 AND each ^@ 'search_path='
    AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_OBJECTS = """
SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend
WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace('pgmta')
    AND deptype = 'n'
ORDER BY 1 LIMIT 1
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

    Several processes may call it at once. Raises StoreUnavailable, FormerDatabase. Raises
    MigrationError if an applied file was changed since; if the database is newer; if daemons of
    another version live; if schema pgmta has objects of another program; or if PostgreSQL is older
    than 15.
    """
    try:
        with psycopg.connect(
            writable(uri), autocommit=True, application_name="pgmta migrate"
        ) as db:
            # other users may have functions in other schemas
            fit(db, as_stored(db), "pg_catalog")
            if db.info.server_version < _MIN_SERVER_VERSION:
                version = db.info.parameter_status("server_version")
                raise MigrationError(f"PostgreSQL 15 or newer is needed, this is {version}")
            db.add_notice_handler(lambda notice: warn(_words(notice)))
            _take_turn(db, warn)
            cycles = _Cycles(writable(uri), db.info.backend_pid)
            return _apply(db, cycles, warn, while_daemons_run)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(blockers.named(uri, error)) from error


def search_path(uri: str) -> str | None:
    """Return the search_path of a database; None if it has none. Raises psycopg.Error."""
    with psycopg.connect(writable(uri), application_name="pgmta migrate") as db:
        found = db.execute(_SEARCH_PATH).fetchone()
    return found[0] if found else None


def _take_turn(db: psycopg.Connection, warn: Callable[[str], None]) -> None:
    """Wait for the lock of migrations; warn of its holder after a while.

    Any login may take it, so a session that never migrates may have it.
    """
    db.execute("SELECT set_config('lock_timeout', %s, false)", (_LOCK_TIMEOUT,))
    try:
        db.execute("SELECT pg_advisory_lock(%s)", (_ADVISORY_LOCK,))
    except psycopg.errors.LockNotAvailable:
        holders = db.execute(_HOLDERS, (_ADVISORY_LOCK,)).fetchall()
        names = ", ".join(f"pid {pid} (role {role}, {name})" for pid, role, name in holders)
        warn(f"waits for the lock of migrations, which this session has: {names or 'none by now'}")
        db.execute("SET lock_timeout = 0")
        db.execute("SELECT pg_advisory_lock(%s)", (_ADVISORY_LOCK,))
    db.execute("SET lock_timeout = 0")


def _apply(
    db: psycopg.Connection, cycles: _Cycles, warn: Callable[[str], None], while_daemons_run: bool
) -> list[str]:
    wanted = migrations()
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in wanted.items()}
    known = _known(db)
    _refuse_foreign_schema(db, migrated=bool(known))
    if not known:
        _refuse_objects(db)
        _run(db, cycles, "the schema", [_MAKE, *topics().values()], sums, busy=False)
        _warn_of_makers(db, warn)
        return list(wanted)
    refuse_former(known)
    if unknown := sorted(set(known) - set(wanted)):
        raise MigrationError(f"the database is newer than this pgmta: it has {unknown[-1]}")
    for name, checksum in known.items():
        if checksum != sums[name]:
            raise MigrationError(f"{name} was changed after it had been applied")
    pending = [name for name in wanted if name not in known]
    db.execute("SET search_path = pgmta")
    if pending and not while_daemons_run:
        _refuse_under_daemons(db, pending)
    for name in pending:
        _run(
            db,
            cycles,
            name,
            [wanted[name], _RENEW_CLAIMS],
            {name: sums[name]},
            busy=while_daemons_run,
        )
    return pending


def _known(db: psycopg.Connection) -> dict[str, str]:
    """Return the checksums of the applied migrations by name, none of a new database.

    Raises FormerDatabase if schema public has the queue of a former version. Other programs may
    have a table of that name there.
    """
    for schema in ("pgmta", "public"):
        table = f"{schema}.schema_migrations"
        columns = db.execute(
            "SELECT count(*) FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid"
            " WHERE c.oid = to_regclass(%s) AND attname IN ('name', 'checksum', 'applied_at')"
            # a view, or a policy of another role, would run functions of that role
            " AND relkind = 'r' AND pg_has_role(relowner, 'USAGE')",
            (table,),
        ).fetchone()
        if columns == (3,):
            history = f"SELECT name, checksum FROM {table}"  # noqa: S608 one of two schemas
            known: dict[str, str] = dict(db.execute(history.encode()).fetchall())
            if schema == "pgmta":
                return known
            if "0001_queue.sql" in known:
                raise FormerDatabase
    return {}


def _run(
    db: psycopg.Connection,
    cycles: _Cycles,
    what: str,
    texts: Sequence[str],
    history: dict[str, str],
    *,
    busy: bool,
) -> None:
    """Run some texts in one transaction, and note the migrations that the database has then.

    Daemons and operators lock tables in other orders, so it may lose a race. Then it takes the
    locks before it does anything. On a `busy` database it does so at once.
    """
    for left in reversed(range(_MAX_TRIES)):
        try:
            with db.transaction():
                if busy or left < _MAX_TRIES - 1:
                    _lock_tables(db, cycles)
                for text in texts:
                    db.execute(text.encode())
                note = "INSERT INTO pgmta.schema_migrations (name, checksum) VALUES (%s, %s)"
                db.cursor().executemany(note, history.items())
        except psycopg.OperationalError as error:
            if not (lost_race(error) or isinstance(error, psycopg.errors.LockNotAvailable)):
                raise
            if not left:
                raise _lost(what, error, cycles) from error
            time.sleep(_RETRY_PAUSE_S)
        except psycopg.Error as error:
            raise MigrationError(f"{what} is not applied: {_words(error.diag) or error}") from error
        else:
            return


def _lock_tables(db: psycopg.Connection, cycles: _Cycles) -> None:
    """Lock all tables of the queue; a statement that keeps one and waits for another is ended.

    Raises LockNotAvailable if another transaction keeps one for long.
    """
    found = db.execute(_TABLES).fetchone()
    if found and found[0]:
        db.execute("SELECT set_config('lock_timeout', %s, true)", (_LOCK_TIMEOUT,))
        with cycles.ended():
            db.execute(f"LOCK TABLE {found[0]} IN ACCESS EXCLUSIVE MODE".encode())
        db.execute("SELECT set_config('lock_timeout', '0', true)")


def _lost(name: str, error: psycopg.Error, cycles: _Cycles) -> MigrationError:
    """Return the error of a migration that lost its last race, with the right that would help."""
    why = blockers.named(cycles.uri, error) if blockers.limited(error) else _words(error.diag)
    text = f"{name} is not applied: {why or error}, {_MAX_TRIES} times"
    if cycles.refused:
        text += (
            f". It may not cancel statements of role {', '.join(sorted(cycles.refused))}. "
            "GRANT pg_signal_backend to the role that migrates, or migrate as a superuser"
        )
    return MigrationError(text)


def _words(notice: psycopg.errors.Diagnostic) -> str:
    texts = (notice.message_primary, notice.message_detail, notice.message_hint)
    summary = ". ".join(text for text in texts if text)
    if foreign := _FUNCTION.search(notice.context or ""):
        summary += (
            f". The function {foreign[1]} says so, as of an event trigger: it needs SECURITY "
            "DEFINER and a search_path of its own"
        )
    return summary


def _refuse_foreign_schema(db: psycopg.Connection, *, migrated: bool) -> None:
    """Raise MigrationError if others may create functions in schema pgmta.

    Our statements look there, and would run these functions with our rights.
    """
    found = db.execute(_FOREIGN).fetchone()
    if found is None:
        return
    maker, may_migrate = found
    if migrated and may_migrate:
        raise MigrationError(
            f"schema pgmta belongs to role {maker}, whose functions would run with the rights of "
            f"a superuser. Migrate with a login of {maker}."
        )
    raise MigrationError(
        f"schema pgmta is there already, and role {maker} may create objects in it. "
        "Migrate as the owner of the schema, and revoke CREATE from others. "
        "If no pgmta made it, drop it."
    )


def _refuse_objects(db: psycopg.Connection) -> None:
    """Raise MigrationError if schema pgmta is not empty: it belongs to another program."""
    if found := db.execute(_OBJECTS).fetchone():
        raise MigrationError(
            f"schema pgmta belongs to another program: it has {found[0]}. "
            "ALTER SCHEMA pgmta RENAME TO …, or take another database"
        )


def _warn_of_makers(db: psycopg.Connection, warn: Callable[[str], None]) -> None:
    if db.execute("SELECT pgmta.condition_path()").fetchone() == ("pgmta, pg_temp",):
        warn(
            "roles beside the owner of schema pgmta may create objects in schema public: "
            "conditions have to write public.NAME (REVOKE CREATE ON SCHEMA public FROM PUBLIC)"
        )


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


class _Cycles:
    """Deadlocks of one session with others, which end in favor of that session."""

    def __init__(self, uri: str, pid: int) -> None:
        self.uri, self._pid = uri, pid
        self.refused: set[str] = set()
        """The roles whose statements this login may not cancel."""

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Cancel each statement that is in a cycle with the session, over a second connection.

        Without this connection PostgreSQL ends one of the two, as ever.
        """
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self.uri, autocommit=True, application_name="pgmta migrate") as db,
        ):
            fit(db, path="pg_catalog")
            while not done.wait(_LOOK_INTERVAL_S):
                for pid, role in db.execute(_CYCLE, {"pid": self._pid}).fetchall():
                    self._cancel(db, pid, role)

    def _cancel(self, db: psycopg.Connection, pid: int, role: str) -> None:
        try:
            db.execute("SELECT pg_cancel_backend(%s)", (pid,))
        except psycopg.errors.InsufficientPrivilege:
            self.refused.add(role)
