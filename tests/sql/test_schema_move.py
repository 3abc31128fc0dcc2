"""The migration to schema pgmta: databases of before, databases of others, and new ones."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from pgmta.errors import MigrationError
from pgmta.postgres.embedded import tool
from pgmta.postgres.operator import connect_operator
from pgmta.store import migrate as migrations_of
from pgmta.store.migrate import migrate
from pgmta.store.schema import migrations, mismatch
from tests.sql.test_surface import one
from tests.support.database import fresh_database

STRANGERS = ("messages", "queue", "audit", "accounts", "workers", "daemons")
THEIR_FUNCTIONS = ("submit", "status", "cancel", "grants", "queue_put", "mailbox_domain")


def migrate_to(uri: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrate as the version whose last migration begins with `last`."""
    with monkeypatch.context() as patch:
        some = {name: text for name, text in migrations().items() if name[:4] <= last}
        patch.setattr(migrations_of, "migrations", lambda: some)
        migrate(uri)


@pytest.fixture
def before(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URI of a database of the version before schema pgmta, with rows in several leaves."""
    with fresh_database(server) as uri:
        migrate_to(uri, "0010", monkeypatch)
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("""
                CREATE SCHEMA leaves;
                CREATE TABLE leaves.queue_ours PARTITION OF queue_def FOR VALUES IN ('ours');
                CREATE VIEW stuck AS SELECT id FROM queue WHERE status = 'HOLD';
                CREATE TABLE queue_two PARTITION OF queue_def FOR VALUES IN ('two');
                INSERT INTO messages (id, size, trace, body)
                SELECT number, 1, '', 'x' FROM generate_series(1, 9) AS number;
                INSERT INTO queue (message_id, sender, recipient, domain, metadata)
                SELECT id, 's@a.example', 'r@b.example', 'b.example', CASE id % 3
                    WHEN 0 THEN jsonb '{"_partid": "ours"}'
                    WHEN 1 THEN '{"_partid": "two"}' ELSE '{}' END
                FROM messages;
                UPDATE queue SET status = 'HOLD', hold_reason = 'ticket 1' WHERE message_id = 9;
                INSERT INTO rules (name, action, condition, reason, origin)
                VALUES ('r', 'hold', 'public.queue.domain = ''never.example''', '', 'operator');
                INSERT INTO attempts (started_at, queue_id, message_id, lease_token, attempt, code,
                    event, sender, recipient, domain, worker, host, command, enhanced, reply)
                VALUES (now(), 7, 8, 9, 1, 250, 'delivered', '', '', '', '', '', '', '', '')
            """)  # fmt: skip
        yield uri


def structure(uri: str) -> str:
    """Return the dump of schema pgmta, with rights."""
    return dump(uri, "--schema-only", "--no-owner", "--schema=pgmta",
        "--exclude-table=pgmta.queue_ours", "--exclude-table=pgmta.queue_two")  # fmt: skip


def dump(uri: str, *options: str) -> str:
    text = subprocess.run(
        [tool("pg_dump"), *options, f"--dbname={uri}"], check=True, capture_output=True, text=True
    ).stdout
    kept = (line for line in text.splitlines() if not re.match(r"--|\\(un)?restrict", line))
    return "\n".join(line for line in kept if line)


def ours_in(db: psycopg.Connection, schema: str) -> set[str]:
    rows = db.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind <> 'i'"
        " UNION SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace",
        (schema, schema),
    )
    return {name for (name,) in rows}


def test_a_database_of_before_moves_with_leaves_rules_and_rights(before: str, server: str) -> None:
    grantee = "grantee_" + before.split("pgmta_test_")[1][:12]
    with psycopg.connect(before, autocommit=True) as db:
        db.execute(f"CREATE ROLE {grantee}; GRANT SELECT ON queue_overview TO {grantee}".encode())
        try:
            assert migrate(before) == [name for name in migrations() if name >= "0011"]
            assert ours_in(db, "public") == {"stuck", "schema_migrations"}
            assert ours_in(db, "leaves") == set()
        finally:
            db.execute("SET search_path = pgmta")
        with psycopg.connect(before, autocommit=True) as fresh:
            assert one(fresh, "SHOW search_path") == "pgmta, public"
            assert one(fresh, "SELECT count(*) FROM queue") == 9
            assert one(fresh, "SELECT count(*) FROM public.stuck") == 1
            assert one(fresh, "SELECT count(*) FROM queue_ours") == 2
            assert one(fresh, "SELECT row_id FROM attempt_history") == 7
            assert one(fresh, "SELECT condition FROM rules") == "queue.domain = 'never.example'"
            assert one(fresh, "SELECT queue_release('status = ''HOLD''')") == 1
            fresh.execute(f"SET ROLE {grantee}".encode())
            assert one(fresh, "SELECT rows FROM queue_overview WHERE status = 'QUEUED'") == 9
        db.execute(f"DROP OWNED BY {grantee}; DROP ROLE {grantee}".encode())
    with fresh_database(server) as uri:
        migrate(uri)
        assert structure(uri) == structure(before)
    assert migrate(before) == []


def test_a_failure_leaves_everything_where_it_was(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**migrations(), "0014_submit.sql": "SELECT 1/0"}
    whole = dump(before)
    with monkeypatch.context() as patch:
        patch.setattr(migrations_of, "migrations", lambda: broken)
        with pytest.raises(MigrationError, match="0014_submit.sql is not applied: division by"):
            migrate(before)
    assert dump(before) == whole
    migrate_to(before, "0010", monkeypatch)


def test_the_tables_of_others_are_not_touched(server: str) -> None:
    with fresh_database(server) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            for name in STRANGERS:
                db.execute(f"CREATE TABLE public.{name} (theirs integer)".encode())
            for name in THEIR_FUNCTIONS:
                db.execute(
                    f"CREATE FUNCTION public.{name}(text) RETURNS int RETURN 1;"
                    f"CREATE FUNCTION public.{name}(int, int) RETURNS int RETURN 1".encode()
                )
            db.execute("CREATE TABLE public.schema_migrations (version text PRIMARY KEY)")
            path = one(db, "SHOW search_path")
        warnings: list[str] = []
        assert migrate(uri, warnings.append) == list(migrations())
        assert any("its search_path stays" in warning for warning in warnings)
        with psycopg.connect(uri, autocommit=True) as db:
            assert ours_in(db, "public") == {*STRANGERS, *THEIR_FUNCTIONS, "schema_migrations"}
            assert one(db, "SHOW search_path") == path
            assert db.execute("TABLE public.queue").fetchall() == []
            assert one(db, "SELECT count(*) FROM pgmta.queue") == 0
        with connect_operator(uri) as operator:
            assert operator.execute("SELECT count(*) AS rows FROM queue").fetchone() == {"rows": 0}
        assert migrate(uri) == []


def test_a_new_database_goes_on_where_it_was_interrupted(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**migrations(), "0006_conditions.sql": "SELECT 1/0"}
    with fresh_database(server) as uri, fresh_database(server) as whole:
        with monkeypatch.context() as patch:
            patch.setattr(migrations_of, "migrations", lambda: broken)
            with pytest.raises(MigrationError, match="0006_conditions.sql is not applied"):
                migrate(uri)
        assert migrate(uri) == [name for name in migrations() if name >= "0006"]
        migrate(whole)
        assert structure(uri) == structure(whole)


def test_a_schema_of_others_is_refused(before: str, server: str) -> None:
    theirs = b"CREATE SCHEMA pgmta; CREATE FUNCTION pgmta.f() RETURNS int RETURN 1"
    with fresh_database(server) as new:
        for uri in (before, new):
            with psycopg.connect(uri, autocommit=True) as db:
                db.execute(theirs)
            with pytest.raises(MigrationError, match="it has function pgmta.f()"):
                migrate(uri)
            with psycopg.connect(uri) as db:
                assert ours_in(db, "pgmta") == {"f"}


def test_a_daemon_of_before_stops_the_migration(before: str) -> None:
    with psycopg.connect(before, autocommit=True) as db:
        db.execute(
            "INSERT INTO daemons"
            " VALUES ('a:1:x', 'smtpd', 'a.example', 1, '0.1', '0010_changes.sql')"
        )
        with pytest.raises(MigrationError, match=r"smtpd on a\.example, pid 1"):
            migrate(before)
        assert one(db, "SELECT count(*) FROM public.queue") == 9


def test_a_rule_that_needs_a_public_of_others_is_refused(before: str) -> None:
    with psycopg.connect(before, autocommit=True) as db:
        db.execute("""
            CREATE FUNCTION judge(text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
            CREATE AGGREGATE queue_test(integer) (sfunc = int4pl, stype = integer);
            CREATE PROCEDURE queue_change() LANGUAGE sql AS 'SELECT 1';
            INSERT INTO rules (name, action, condition, reason, origin)
            VALUES ('judge', 'hold', 'judge(sender)', '', 'operator');
            GRANT CREATE ON SCHEMA public TO PUBLIC
        """)
        with pytest.raises(MigrationError, match="0011_schema.sql .* the condition is refused"):
            migrate(before)
        db.execute("UPDATE rules SET condition = 'public.judge(sender)' WHERE name = 'judge'")
    assert migrate(before)


def test_programs_of_before_find_a_database_that_is_newer(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(before, autocommit=True) as db:
        db.execute("CREATE TABLE public.accounts (theirs integer)")
        migrate(before)
        assert one(db, "SELECT name FROM schema_migrations") == "0011_schema.sql"
        former = mismatch([n for n in migrations() if n < "0011"], {"0011_schema.sql"})
        assert "the database has migration 0011_schema.sql" in former
        assert migrate(before) == []
        told: list[str] = []
        db.execute("DROP TABLE schema_migrations")
        assert migrate(before, told.append) == []
        assert told == []
        db.execute("CREATE TABLE schema_migrations (LIKE pgmta.schema_migrations)")
        db.execute("INSERT INTO schema_migrations TABLE pgmta.schema_migrations")
        assert migrate(before, told.append) == []
        assert "schema public has a second queue" in told[0]
