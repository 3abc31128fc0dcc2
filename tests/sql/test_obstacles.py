"""Obstacles to the move to schema pgmta are named before anything changes."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgmta.errors import MigrationError
from pgmta.store.migrate import migrate
from pgmta.store.obstacles import refuse_obstacles
from pgmta.store.queries import queries
from pgmta.store.schema import migrations
from tests.sql.test_foreign_objects import ROLE
from tests.sql.test_foreign_objects import empty as empty  # a fixture
from tests.sql.test_schema_move import before as before  # a fixture
from tests.sql.test_schema_move import dump, migrate_to, ours_in
from tests.sql.test_surface import one

STATEMENTS = queries("obstacles")
OLD = [name for name in migrations() if name < "0011"]
FUNCTIONS = """
SELECT proname || '(' || oidvectortypes(proargtypes) || ')', md5(prosrc) FROM pg_proc
WHERE pronamespace = 'public'::regnamespace
"""
COLUMNS = """
SELECT relname::text, attname::text FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relname IN ('queue', 'messages', 'attempts') AND attnum > 0 AND NOT attisdropped
"""
OBSTACLES = """
ALTER TABLE queue ADD COLUMN tenant integer;
ALTER TABLE attempts ADD COLUMN row_id integer;
ALTER TABLE messages ADD CONSTRAINT messages_ret CHECK (size > 0);
CREATE TABLE leaves.queue_two PARTITION OF queue_def FOR VALUES IN ('other two');
CREATE INDEX queue_once ON queue (message_id);
CREATE OR REPLACE FUNCTION queue_quiet() RETURNS void LANGUAGE sql AS '';
DROP FUNCTION queue_delete(text, text);
CREATE FUNCTION queue_delete(text) RETURNS integer LANGUAGE sql AS 'SELECT 1';
"""
NAMED = [
    "table public.attempts already has a column row_id: ALTER TABLE public.attempts RENAME",
    "table public.queue already has a column tenant: ALTER TABLE public.queue RENAME COLUMN",
    "table public.messages already has a constraint messages_ret: ALTER TABLE public.messages",
    "leaves.queue_two and public.queue_two have the same name: ALTER TABLE public.queue_two",
    "public.queue_once has a name that pgmta gives: ALTER INDEX public.queue_once RENAME TO",
    "function public.queue_quiet() was changed: restore its text of sql/migrations/0003_*.sql",
    "function public.queue_delete(text, text) is gone: restore it from sql/migrations/0010_*.sql",
]


def test_the_lists_are_those_of_the_migrations(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    brought, columns = set(), set[tuple[str, str]]()
    with psycopg.connect(empty, autocommit=True) as db:
        for number in [*(name[:4] for name in OLD), max(migrations())[:4]]:
            migrate_to(empty, number, monkeypatch)
            if number <= "0010":
                known = STATEMENTS["functions"].fill(until=f"'{number}'")
                listed = {row[0]: row[1] for row in db.execute(known, {}) if row[1]}
                assert listed == dict(db.execute(FUNCTIONS).fetchall()), number
            now = set(db.execute(COLUMNS).fetchall())
            since = min(number, "0011")
            brought |= {(since, *each) for each in now - columns if number > "0004"}
            columns = now
    lists = re.findall(r"\('(\d{4})', '(\w+)', '\{([\w,]+)\}'", STATEMENTS["columns"].decode())
    assert brought == {(n, table, name) for n, table, names in lists for name in names.split(",")}
    lists = re.findall(r"\('(\d{4})', '\{([\w,]+)\}'", STATEMENTS["names"].decode())
    made = {
        (number[:4], name)
        for number, text in migrations().items()
        if number > "0005"
        for name in re.findall(
            r"^CREATE (?:TABLE|UNLOGGED TABLE|VIEW|INDEX|UNIQUE INDEX) (\w+)", text, re.M
        )
    }
    assert made == {(number, name) for number, names in lists for name in names.split(",")}


def refused(db: psycopg.Connection) -> list[str]:
    """The lines of the refusal."""
    applied = {name for (name,) in db.execute("SELECT name FROM public.schema_migrations")}
    with pytest.raises(MigrationError) as error:
        refuse_obstacles(db, applied, "0011_schema.sql")
    first, *lines = str(error.value).splitlines()
    assert first.startswith("0011_schema.sql is not applied, and nothing has changed.")
    return [line.strip() for line in lines]


def test_every_obstacle_is_named_at_once_and_nothing_changes(before: str) -> None:
    with psycopg.connect(before, autocommit=True) as db:
        db.execute(OBSTACLES.encode())
        changed = dump(before)
        db.execute("SET search_path = pg_catalog")
        lines = refused(db)
        for start in NAMED:
            assert any(line.startswith(start) for line in lines), lines
        with pytest.raises(MigrationError, match="already has a column tenant"):
            migrate(before)
        assert dump(before) == changed
        for number, line in enumerate(lines):
            if line.endswith(" TO …"):
                db.execute(line.split(": ")[1].replace("…", f"own_{number}").encode())
        for name, start in (("0003_surface.sql", "queue_quiet"), (OLD[9], "queue_delete")):
            text = re.search(
                rf"^CREATE (FUNCTION {start}.*?\$\$;)", migrations()[name], re.M | re.S
            )
            assert text
            db.execute(f"SET search_path = public; CREATE OR REPLACE {text[1]}".encode())
        assert migrate(before)
        assert ours_in(db, "public") == {"stuck", "schema_migrations", "queue_delete"}


def test_a_refusal_leaves_a_database_of_long_before(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_to(empty, "0004", monkeypatch)
    with psycopg.connect(empty, autocommit=True) as db:
        db.execute("""
            CREATE TABLE daemons (theirs integer);
            CREATE FUNCTION queue_takes(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
        """)
        whole = dump(empty)
        with pytest.raises(MigrationError) as error:
            migrate(empty)
        for line in (
            "public.daemons has a name that pgmta gives: ALTER TABLE public.daemons RENAME TO …",
            "function public.queue_takes(text) has a name that pgmta gives: ALTER FUNCTION",
        ):
            assert line in str(error.value)
        assert dump(empty) == whole
        db.execute("ALTER TABLE daemons RENAME TO theirs; DROP FUNCTION queue_takes(text)")
        assert migrate(empty) == [name for name in migrations() if name >= "0005"]


def as_role(uri: str) -> str:
    return make_conninfo(uri, options=f"-c role={ROLE}")


def test_rights_that_the_migrating_role_lacks_are_named(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(empty, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}".encode())
        migrate_to(as_role(empty), "0010", monkeypatch)
        db.execute(
            f"""
            ALTER TABLE queue_hold OWNER TO CURRENT_USER;
            ALTER FUNCTION queue_quiet() OWNER TO CURRENT_USER;
            CREATE TABLE queue_theirs PARTITION OF queue_def FOR VALUES IN ('theirs');
            REVOKE CREATE ON SCHEMA public FROM {ROLE};
        """.encode()
        )
        with pytest.raises(MigrationError, match=f"the queue belongs to role {ROLE}, and .* super"):
            migrate(empty)
        with db.transaction(force_rollback=True):
            db.execute(
                f"""
                DO $$ BEGIN
                    IF to_regrole('postern_smtpd') IS NULL THEN CREATE ROLE postern_smtpd; END IF;
                    IF to_regrole('pgmta_smtpd') IS NULL THEN CREATE ROLE pgmta_smtpd; END IF;
                END $$;
                GRANT SELECT ON public.queue TO postern_smtpd;
                REVOKE pgmta_smtpd FROM postern_smtpd;
                SET LOCAL ROLE {ROLE};
                SET LOCAL search_path = pg_catalog;
            """.encode()
            )
            lines = refused(db)
        for start in (
            f"role {ROLE} may not create schema pgmta: GRANT CREATE ON DATABASE {name} TO {ROLE}",
            "table public.queue_hold belongs to role ",
            "table public.queue_theirs belongs to role ",
            "function public.queue_quiet() belongs to role ",
            "role pgmta_smtpd cannot be granted to postern_smtpd: as a superuser: GRANT",
        ):
            assert any(line.startswith(start) for line in lines), lines
        db.execute(f"GRANT CREATE ON DATABASE {name} TO {ROLE}".encode())
        for kind in ("TABLE queue_hold", "TABLE queue_theirs", "FUNCTION queue_quiet()"):
            db.execute(f"ALTER {kind} OWNER TO {ROLE}".encode())
        told: list[str] = []
        assert migrate(as_role(empty), told.append)
        assert any("schema public got no table schema_migrations" in line for line in told)
        assert one(db, "SELECT to_regclass('public.schema_migrations')") is None
        assert migrate(as_role(empty)) == []
        with pytest.raises(MigrationError, match=f"belongs to role {ROLE}, whose functions"):
            migrate(empty)
