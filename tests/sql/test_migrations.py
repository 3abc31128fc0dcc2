"""The schema as it comes from the migrations."""

from __future__ import annotations

import threading

import psycopg
import pytest

from queued.errors import MigrationError
from queued.states import Status
from queued.store.migrate import migrate, migrations
from tests.support.database import fresh_database


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
    assert {s for s in check.split("'") if s.isupper()} == {status.value for status in Status}
