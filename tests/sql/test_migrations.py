"""Migrations of a database that has the baseline, and the daemons on it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.errors import FormerDatabase, MigrationError, SchemaMismatch
from pgmta.store.admin import migrate as migrate_module
from pgmta.store.admin.migrate import migrate
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.enqueue import Enqueue
from pgmta.store.schema import migrations
from tests.sql.test_surface import linked, message
from tests.support.database import fresh_database
from tests.support.waiting import until

NEXT = "0002_next.sql"


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
    with pytest.raises(MigrationError, match=r"0001_schema_\w+ was changed"):
        migrate(database)
    db.execute("UPDATE schema_migrations SET name = '0001_schema_of_another'")
    with pytest.raises(FormerDatabase):
        migrate(database)


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
    db.execute("UPDATE daemons SET seen_at = now() - interval '61 s' WHERE pid = 3")
    with pytest.raises(MigrationError) as refused:
        migrate(database)
    lines = str(refused.value).splitlines()
    assert lines[1:-1] == [f"  smtpd on a.example, pid 1, version 0.1 ({last})"]
    assert "--while-daemons-run" in lines[-1]
    assert db.execute("SELECT to_regclass('newer')").fetchone() == (None,)
    assert migrate(database, while_daemons_run=True) == [NEXT]


async def test_a_claim_of_before_a_migration_gets_nothing(
    database: str, db: psycopg.Connection, next_version: Callable[[str], None]
) -> None:
    async with linked(database, **SESSION) as link:
        claims, store = Claims(link, "w", 60), Enqueue(link)
        first = (await store.reserve(3))[0]
        await store.commit([message(first, "b@example.com")])
        assert len((await claims.claim(10, [])).items) == 1
        await store.commit([message(first + 1, "c@example.com")])
        next_version("ALTER TABLE queue ADD COLUMN newer integer")
        migrate(database, while_daemons_run=True)
        with pytest.raises(SchemaMismatch, match=NEXT):
            await claims.claim(10, [])
        with pytest.raises(SchemaMismatch, match=NEXT):
            await store.reserve(1)
        with pytest.raises(SchemaMismatch):
            await store.commit([message(first + 2, "d@example.com")])
    assert db.execute("SELECT attempts FROM queue ORDER BY id").fetchall() == [(1,), (0,)]


@pytest.mark.slow
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
    monkeypatch.setattr(migrate_module, "_MAX_TRIES", 1)
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
    server: str, next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    role = "pgmta_test_migrator"
    monkeypatch.setattr(migrate_module, "_MAX_TRIES", 1)
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
                next_version("COMMENT ON TABLE queue IS 'new'")
                for each in (db, settler):
                    each.execute("SET search_path = pgmta")
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
