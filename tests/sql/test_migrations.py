"""The schema as it comes from the migrations."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.errors import MigrationError, SchemaMismatch
from pgmta.states import Event, Removal, Status
from pgmta.store import migrate as migrate_module
from pgmta.store.claim import SESSION, Claims
from pgmta.store.enqueue import Enqueue
from pgmta.store.migrate import migrate
from pgmta.store.schema import migrations
from tests.sql.test_surface import linked, message
from tests.support.database import fresh_database
from tests.support.waiting import until

NEXT = "9000_next.sql"


def test_concurrent_and_repeated_migrations_apply_each_once(server: str) -> None:
    with fresh_database(server) as uri:
        applied: list[str] = []
        threads = [threading.Thread(target=lambda: applied.extend(migrate(uri))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert applied == list(migrations())
        assert migrate(uri) == []


def test_changed_and_unknown_migrations_are_refused(database: str, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO schema_migrations VALUES ('9999_future.sql', '')")
    with pytest.raises(MigrationError, match=r"newer.*9999_future"):
        migrate(database)
    db.execute("DELETE FROM schema_migrations WHERE name LIKE '9999%'")
    db.execute("UPDATE schema_migrations SET checksum = 'other'")
    with pytest.raises(MigrationError, match=r"0001_queue\.sql was changed"):
        migrate(database)


def test_every_object_has_a_comment(db: psycopg.Connection) -> None:
    bare = db.execute("""
        SELECT 'table ' || c.relname FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'S', 'v')
            AND obj_description(c.oid) IS NULL AND c.relname !~ '^attempts_\\d'
        UNION ALL
        SELECT 'column ' || c.relname || '.' || a.attname FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
            AND NOT c.relispartition AND col_description(c.oid, a.attnum) IS NULL
        UNION ALL
        SELECT 'function ' || proname FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND obj_description(oid) IS NULL
        UNION ALL
        SELECT 'trigger ' || tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE NOT tgisinternal AND tgparentid = 0 AND obj_description(t.oid) IS NULL
    """).fetchall()
    assert bare == []


def test_statuses_of_sql_and_python_are_the_same(db: psycopg.Connection) -> None:
    (check,) = db.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conname = 'queue_status' AND conrelid = 'queue'::regclass"
    ).fetchone() or ("",)
    assert set(re.findall("[A-Z]{4,}", check.replace("CHECK", ""))) == {*Status}
    (check,) = db.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conname = 'attempts_event' AND conrelid = 'attempts'::regclass"
    ).fetchone() or ("",)
    # a takeover's is `unknown`
    without_entry = {Event.CLAIM, Event.TAKEOVER, Event.HAND_BACK, Event.REPORT}
    assert set(re.findall("'([a-z]+)'", check)) == {*Event, *Removal} - without_entry


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give `migrate` one more migration, with that text."""

    def add(text: str) -> None:
        with_next = {**migrations(), NEXT: text}
        monkeypatch.setattr(migrate_module, "migrations", lambda: with_next)

    return add


def test_daemons_of_another_version_are_named_and_nothing_is_applied(
    database: str, db: psycopg.Connection, next_version: Callable[[str], None]
) -> None:
    next_version("CREATE TABLE newer ()")
    last = list(migrations())[-1]
    db.execute(
        "INSERT INTO daemons VALUES ('a:1:x', 'smtpd', 'a.example', 1, '0.1', %s),"
        " ('b:2:x', 'queued', 'b.example', 2, '0.2', %s), ('c:3:x', 'queued', 'c', 3, '0', 'old')",
        (last, NEXT),
    )
    db.execute(
        "INSERT INTO workers (owner, name, action, reach)"
        " VALUES ('d.example:4:x', 'w', 'deliver', 'true'), ('b:2:x', 'w', 'deliver', 'true')"
    )
    db.execute("UPDATE daemons SET seen_at = now() - interval '61 s' WHERE pid = 3")
    with pytest.raises(MigrationError) as refused:
        migrate(database)
    lines = str(refused.value).splitlines()
    assert lines[1:-1] == [
        f"  smtpd on a.example, pid 1, version 0.1 ({last})",
        "  queued on d.example, pid 4, of an earlier version",
    ]
    assert "--while-daemons-run" in lines[-1]
    assert db.execute("SELECT to_regclass('newer')").fetchone() == (None,)
    assert migrate(database, while_daemons_run=True) == [NEXT]


def test_daemons_without_heartbeat_are_found_by_their_sessions(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {name: text for name, text in migrations().items() if name < "0008"}
    with fresh_database(server) as uri:
        with monkeypatch.context() as patch:
            patch.setattr(migrate_module, "migrations", lambda: old)
            migrate(uri)
        with psycopg.connect(uri, application_name="pgmta smtpd 0") as session:
            pid = session.info.backend_pid
            with pytest.raises(MigrationError, match=f"smtpd of an earlier version.* {pid}"):
                migrate(uri)
        assert migrate(uri)


async def test_a_claim_of_before_a_migration_gets_nothing(
    database: str, db: psycopg.Connection, next_version: Callable[[str], None]
) -> None:
    async with linked(database, **SESSION) as link:
        claims, store = Claims(link, "w", 60), Enqueue(link)
        first = (await store.block())[0]
        await store.commit([message(first, "b@example.com")])
        assert len((await claims.claim(10, [])).items) == 1
        await store.commit([message(first + 1, "c@example.com")])
        next_version("ALTER TABLE queue ADD COLUMN newer integer")
        migrate(database, while_daemons_run=True)
        with pytest.raises(SchemaMismatch, match=NEXT):
            await claims.claim(10, [])
        with pytest.raises(SchemaMismatch, match=NEXT):
            await store.block()
        with pytest.raises(SchemaMismatch):
            await store.commit([message(first + 2, "d@example.com")])
    assert db.execute("SELECT attempts FROM queue ORDER BY id").fetchall() == [(1,), (0,)]


def test_a_migration_that_lost_a_race_runs_again(
    database: str, next_version: Callable[[str], None]
) -> None:
    """The session that began to wait first finds the deadlock, and is ended for it."""
    next_version("LOCK TABLE queue; LOCK TABLE messages; COMMENT ON TABLE queue IS 'new'")
    waiting = "SELECT FROM pg_locks WHERE relation = 'messages'::regclass AND NOT granted"
    done: list[str] = []
    migration = threading.Thread(target=lambda: done.extend(migrate(late)))
    late = make_conninfo(database, options="-c deadlock_timeout=5s")
    with psycopg.connect(database, options="-c deadlock_timeout=60s") as db:
        db.execute("SET search_path = pgmta")
        db.execute("LOCK TABLE messages IN ACCESS SHARE MODE")
        migration.start()
        until(lambda: db.execute(waiting).rowcount)
        db.execute("LOCK TABLE queue IN ACCESS SHARE MODE")  # granted at the end of the other one
        assert done == []
    migration.join()
    assert done == [NEXT]


def waits_for(db: psycopg.Connection, table: str) -> Callable[[], int]:
    waiting = (
        "SELECT FROM pg_locks WHERE relation = %s::regclass AND mode = 'AccessExclusiveLock'"
        " AND NOT granted"
    )
    return lambda: db.execute(waiting, (table,)).rowcount


def test_a_migration_ends_who_waits_for_it_in_a_cycle_and_no_submission(
    database: str,
    db: psycopg.Connection,
    next_version: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    next_version("LOCK TABLE messages; LOCK TABLE queue; COMMENT ON TABLE queue IS 'new'")
    monkeypatch.setattr(migrate_module, "_TRIES", 1)
    done: list[str] = []
    late = make_conninfo(database, options="-c deadlock_timeout=60s")
    migration = threading.Thread(
        target=lambda: done.extend(migrate(database, while_daemons_run=True))
    )
    with psycopg.connect(late) as submitter, psycopg.connect(late) as settler:
        for each in (submitter, settler):
            each.execute("SET search_path = pgmta")
        submitter.execute("LOCK TABLE messages IN ROW EXCLUSIVE MODE")
        settler.execute("LOCK TABLE queue IN ROW EXCLUSIVE MODE")
        migration.start()
        until(waits_for(db, "messages"))
        submitter.execute("LOCK TABLE queue IN ROW EXCLUSIVE MODE")
        submitter.commit()
        until(waits_for(db, "queue"))
        with pytest.raises(psycopg.errors.QueryCanceled):
            settler.execute("LOCK TABLE messages IN ROW EXCLUSIVE MODE")
        settler.rollback()
        migration.join()
    assert done == [NEXT]


def test_a_migration_that_may_end_nobody_names_the_right(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = "pgmta_test_migrator"
    steps = {"0001_queue.sql": "CREATE TABLE messages (); CREATE TABLE queue ()"}
    monkeypatch.setattr(migrate_module, "migrations", lambda: dict(steps))
    monkeypatch.setattr(migrate_module, "_TRIES", 1)
    errors: list[MigrationError] = []

    def lose() -> None:
        with pytest.raises(MigrationError) as lost:
            migrate(uri, while_daemons_run=True)
        errors.append(lost.value)

    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role}".encode())
        try:
            with (
                fresh_database(server) as database,
                psycopg.connect(database, autocommit=True) as db,
                psycopg.connect(database, options="-c deadlock_timeout=60s") as settler,
            ):
                db.execute(f"ALTER DATABASE {db.info.dbname} OWNER TO {role}".encode())
                uri = make_conninfo(database, options=f"-c role={role}")
                migrate(uri)
                steps[NEXT] = "COMMENT ON TABLE queue IS 'new'"
                settler.execute("LOCK TABLE queue IN ROW EXCLUSIVE MODE")
                migration = threading.Thread(target=lose)
                migration.start()
                until(waits_for(db, "queue"))
                settler.execute("LOCK TABLE messages IN ROW EXCLUSIVE MODE")
                migration.join()
        finally:
            admin.execute(f"DROP ROLE {role}".encode())
    assert "deadlock detected" in str(errors[0])
    assert "GRANT pg_signal_backend" in str(errors[0])
