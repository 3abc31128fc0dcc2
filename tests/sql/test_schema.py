"""The schema of a new database, and what a database of another one gets."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from pgmta.errors import FormerDatabase, MigrationError
from pgmta.postgres.embedded.programs import tool
from pgmta.states import LOGGED_EVENTS, Status
from pgmta.store.admin import migrate as migrate_module
from pgmta.store.admin.daemons import Heartbeat, misfit
from pgmta.store.admin.migrate import migrate
from pgmta.store.schema import Schema, migrations
from pgmta_features.lifecycle.installation import install
from queued.cli.queuectl import main
from tests.sql.test_surface import linked, one
from tests.support.database import fresh_database
from tests.support.operating import operating

STRANGERS = ("messages", "queue", "audit", "accounts", "workers", "daemons")
THEIR_FUNCTIONS = ("submit", "status", "cancel", "grants", "queue_put", "mailbox_domain")
FORMER_TABLES = """
CREATE TABLE {schema}.schema_migrations (
    name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO {schema}.schema_migrations VALUES ('0001_queue.sql', ''), ('0057_names.sql', '');
CREATE TABLE {schema}.queue (id bigint);
CREATE TABLE {schema}.daemons (process text PRIMARY KEY, program text, host text, pid integer,
    version text, schema text, seen_at timestamptz);
"""


def dump(uri: str, *options: str) -> list[str]:
    """The lines of a dump, without comments of pg_dump itself and without the days of logs."""
    text = subprocess.run(
        [tool("pg_dump"), *options, "--exclude-table=pgmta.*_2*", f"--dbname={uri}"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [
        line for line in text.splitlines() if line and not re.match(r"--|\\(un)?restrict", line)
    ]


def ours_in(db: psycopg.Connection, schema: str) -> set[str]:
    rows = db.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind <> 'i'"
        " UNION SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace",
        (schema, schema),
    )
    return {name for (name,) in rows}


def test_every_object_has_a_comment(db: psycopg.Connection) -> None:
    bare = db.execute("""
        SELECT 'relation ' || c.relname FROM pg_class c
        WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relkind IN ('r', 'p', 'S', 'v')
            AND obj_description(c.oid, 'pg_class') IS NULL AND c.relname !~ '_2[0-9]{7}$'
        UNION ALL
        SELECT 'column ' || c.relname || '.' || a.attname FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = 'pgmta'::regnamespace AND c.relkind IN ('r', 'p', 'v')
            AND NOT c.relispartition AND col_description(c.oid, a.attnum) IS NULL
        UNION ALL
        SELECT 'index ' || c.relname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
        WHERE c.relnamespace = 'pgmta'::regnamespace AND NOT indisprimary AND NOT relispartition
            AND obj_description(c.oid, 'pg_class') IS NULL
        UNION ALL
        SELECT 'check ' || conname FROM pg_constraint WHERE contype = 'c' AND coninhcount = 0
            AND connamespace = 'pgmta'::regnamespace
            AND obj_description(oid, 'pg_constraint') IS NULL
        UNION ALL
        SELECT 'function ' || proname FROM pg_proc
        WHERE pronamespace = 'pgmta'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
        UNION ALL
        SELECT 'trigger ' || tgname FROM pg_trigger t
        WHERE NOT tgisinternal AND tgparentid = 0 AND obj_description(t.oid, 'pg_trigger') IS NULL
        UNION ALL
        SELECT 'schema' WHERE obj_description('pgmta'::regnamespace, 'pg_namespace') IS NULL
    """).fetchall()
    assert bare == []


def test_every_function_compiles(db: psycopg.Connection) -> None:
    """A new database checks no body, because functions name tables of later files."""
    db.execute("SET check_function_bodies = on")
    found = db.execute("""
        SELECT p.oid, lanvalidator::regproc::text
        FROM pg_proc p JOIN pg_language l ON l.oid = prolang
        WHERE pronamespace = 'pgmta'::regnamespace
    """).fetchall()
    for oid, validator in found:
        db.execute(f"SELECT {validator}(%s)".encode(), (oid,))
    assert len(found) > 50


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
    assert set(re.findall("'([a-z]+)'", check)) == {*LOGGED_EVENTS}


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
        with operating(uri, lambda operator: operator) as operator:
            assert operator.row("SELECT count(*) AS rows FROM queue") == {"rows": 0}
        assert migrate(uri) == []


def test_a_failure_leaves_nothing(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_database(server) as uri:
        before = dump(uri)
        with monkeypatch.context() as patch:
            patch.setattr(migrate_module, "topics", lambda: {"x": "CREATE TABLE t (); SELECT 1/0"})
            with pytest.raises(MigrationError, match="the schema is not applied: division by zero"):
                migrate(uri)
        assert dump(uri) == before
        assert migrate(uri)


def test_a_schema_of_others_is_refused(server: str) -> None:
    with fresh_database(server) as uri, psycopg.connect(uri, autocommit=True) as db:
        db.execute("CREATE SCHEMA pgmta; CREATE FUNCTION pgmta.f() RETURNS int RETURN 1")
        with pytest.raises(MigrationError, match=r"it has function pgmta.f\(\)"):
            migrate(uri)
        assert ours_in(db, "pgmta") == {"f"}


@pytest.mark.parametrize("schema", ["pgmta", "public"])
def test_a_database_from_before_the_baseline_is_refused_in_one_line(
    server: str, schema: str, tmp_path: Path
) -> None:
    config = tmp_path / "queued.yaml"
    with fresh_database(server) as uri, psycopg.connect(uri, autocommit=True) as db:
        db.execute("CREATE SCHEMA pgmta")
        db.execute(FORMER_TABLES.format(schema=schema).encode())
        if schema == "public":
            db.execute("DROP SCHEMA pgmta")
        before = dump(uri)
        config.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
        for options in ([], ["--while-daemons-run"]):
            result = CliRunner().invoke(main, ["database", "migrate", "-c", str(config), *options])
            assert result.exit_code == 2
            assert result.output == f"error: {FormerDatabase()}\n"
        if schema == "pgmta":
            asyncio.run(refused_by_daemons(uri))
        assert dump(uri) == before


async def refused_by_daemons(uri: str) -> None:
    """The heartbeat of a daemon, and its command `check`, name the reason and write nothing."""
    async with linked(uri) as link:
        heartbeat = Heartbeat(link, Schema(), "h:1:x", "queued", "h")
        with pytest.raises(FormerDatabase):
            await heartbeat.beat()
        await heartbeat.leave()
    async with linked(uri) as link:
        with pytest.raises(FormerDatabase):
            await misfit(link, "queued")


def test_texts_in_functions_mean_the_same_in_every_session(database: str) -> None:
    """A backslash in a text depends on standard_conforming_strings, which any session may set."""
    install(database)
    with psycopg.connect(database) as db:
        rows = db.execute(r"""
            SELECT proname FROM pg_proc
            WHERE pronamespace IN ('pgmta'::regnamespace, 'lifecycle'::regnamespace)
                AND prosrc ~ '(?<![EeA-Za-z])''([^''\\]|'''')*\\'
                AND array_to_string(proconfig, ' ') ~ 'search_path'
                AND array_to_string(proconfig, ' ') !~ 'standard_conforming_strings=on'
        """)
        assert [name for (name,) in rows] == []
