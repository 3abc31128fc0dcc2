"""Objects of others in schema public or pgmta: our sessions do not run them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg.conninfo import make_conninfo

from pgmta.errors import MigrationError
from pgmta.postgres.link import connect
from pgmta.postgres.operator import connected
from pgmta.store.admin.migrate import migrate
from pgmta.store.queue.partitions import opened
from tests.sql.test_submit_transactions import SUBMIT
from tests.sql.test_submit_values import MAIL
from tests.support.database import fresh_database
from tests.support.rows import fetch

ROLE = f"pgmta_test_{uuid.uuid4().hex[:12]}"
TRAPS = """
CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN RAISE 'captured by nextval'; END $$;
CREATE FUNCTION public.format(text, text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RAISE 'captured by format'; END $$;
CREATE FUNCTION public.format(text, regprocedure) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RAISE 'captured by format'; END $$;
CREATE FUNCTION public.concat_ws(text, text, text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RAISE 'captured by concat_ws'; END $$;
"""


@pytest.fixture
def empty(server: str) -> Iterator[str]:
    """URI of a database in which a role may create objects in public."""
    with fresh_database(server) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute(f"CREATE ROLE {ROLE}".encode())
        yield uri
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"DROP ROLE {ROLE}".encode())


async def paths(uri: str) -> set[str]:
    """The search_path of each kind of connection."""
    found = []
    connection = await connect(uri, "test")
    cursor = await connection.execute("SHOW search_path")
    found.append((await cursor.fetchall())[0][0])
    await connection.close()
    async with connected(uri) as command:
        found += [row["search_path"] for row in await command.rows("SHOW search_path")]
        said = await command.rows("SELECT pgmta.condition_path() AS path")
        found += [row["path"] for row in said]
    async with opened(uri) as command:
        found += [row["search_path"] for row in await command.rows("SHOW search_path")]
    return set(found)


async def test_public_is_left_out_if_others_may_create_objects_there(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as db:
        db.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}".encode())
        db.execute(f"SET ROLE {ROLE}".encode())
        db.execute(TRAPS.encode())
        db.execute("CREATE FUNCTION public.own() RETURNS boolean LANGUAGE sql AS 'SELECT true'")
        db.execute("RESET ROLE")
        told: list[str] = []
        migrate(empty, told.append)
        assert any("schema public" in line for line in told)
        assert await paths(empty) == {"pgmta, pg_temp"}
        assert fetch(db, "SELECT pgmta.queue_condition('public.own()')")
        assert fetch(db, "SELECT pgmta.queue_hold('public.own()', 'test')") == (0,)
        assert fetch(db, "SHOW search_path") == ('"$user", public',)
        assert fetch(db, "SELECT count(*) FROM pgmta.queue_test('true', ARRAY[1])") == (0,)
        with pytest.raises(psycopg.errors.UndefinedFunction):
            db.execute("SELECT pgmta.queue_condition('own()')")
        db.execute(f"REVOKE CREATE ON SCHEMA public FROM {ROLE}".encode())
        assert await paths(empty) == {"pgmta, public, pg_temp"}
        db.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        assert await paths(empty) == {"pgmta, pg_temp"}


async def test_nothing_of_others_runs_before_the_path_is_narrow(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each function that a session calls before names pg_catalog."""
    said: list[str] = []
    plain, plain_async = psycopg.Connection.execute, psycopg.AsyncConnection.execute

    def execute(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        said.append(query.decode() if isinstance(query, bytes) else str(query))
        asynchronous = isinstance(self, psycopg.AsyncConnection)
        return (plain_async if asynchronous else plain)(self, query, *args, **options)

    cursor, cursor_async = psycopg.Cursor.execute, psycopg.AsyncCursor.execute

    def of_cursor(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        said.append(query.decode() if isinstance(query, bytes) else str(query))
        asynchronous = isinstance(self, psycopg.AsyncCursor)
        return (cursor_async if asynchronous else cursor)(self, query, *args, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute)
    monkeypatch.setattr(psycopg.Cursor, "execute", of_cursor)
    monkeypatch.setattr(psycopg.AsyncCursor, "execute", of_cursor)

    def before() -> str:
        narrow = next(n for n, query in enumerate(said) if query.startswith("SET search_path"))
        words = " ".join(said[:narrow])
        said.clear()
        return words

    migrate(empty)
    opening = [before()]
    await (await connect(empty, "test", {"work_mem": "4MB"})).close()
    opening.append(before())
    async with connected(empty):
        opening.append(before())
    async with opened(empty):
        opening.append(before())
    for words in opening:
        assert "pg_catalog.pg_backend_pid()" in words
        assert not re.search(r"(?<!pg_catalog\.)\b[a-z_]+\((?!SELECT)", words), words


def test_a_migration_runs_nothing_of_others(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as db:
        db.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}; SET ROLE {ROLE}".encode())
        db.execute(TRAPS.encode())
        db.execute("""
            CREATE FUNCTION public.spy() RETURNS text LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'captured by a view'; END $$;
            CREATE FUNCTION public.format(text, name, name) RETURNS text LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'captured by format'; END $$;
            CREATE VIEW public.schema_migrations AS
                SELECT spy() AS name, 'x' AS checksum, now() AS applied_at;
        """)
        db.execute("RESET ROLE")
        db.execute(f"CREATE ROLE {ROLE}_2".encode())
        try:
            with pytest.raises(MigrationError, match="may not create schema pgmta"):
                migrate(make_conninfo(empty, options=f"-c role={ROLE}_2"))
            assert migrate(empty)
        finally:
            db.execute(f"DROP ROLE {ROLE}_2".encode())


async def test_public_of_another_database_owner_is_left_out(empty: str) -> None:
    migrate(empty)
    assert await paths(empty) == {"pgmta, public, pg_temp"}
    with psycopg.connect(empty, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"ALTER DATABASE {name} OWNER TO {ROLE}".encode())
        assert await paths(empty) == {"pgmta, pg_temp"}
        db.execute(f"ALTER DATABASE {name} OWNER TO CURRENT_USER".encode())


async def test_a_temporary_table_does_not_stand_for_one_of_ours(database: str) -> None:
    """A function that a condition calls may have made it, and the session lives on."""
    link = await connect(database, "test")
    async with connected(database) as command:
        await link.execute("CREATE TEMPORARY TABLE queue ()")
        await command.execute("CREATE TEMPORARY TABLE queue ()")
        ours = "SELECT 'queue'::regclass = 'pgmta.queue'::regclass AS ours"
        assert await (await link.execute(ours)).fetchone() == (True,)
        assert await command.row(ours) == {"ours": True}
    await link.close()


def test_a_schema_of_others_is_refused(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as db:
        for given in (
            f"CREATE SCHEMA pgmta AUTHORIZATION {ROLE}",
            f"CREATE SCHEMA pgmta; GRANT CREATE ON SCHEMA pgmta TO {ROLE}",
            "CREATE SCHEMA pgmta; GRANT CREATE ON SCHEMA pgmta TO PUBLIC",
        ):
            db.execute(given.encode())
            with pytest.raises(MigrationError, match="schema pgmta is there already"):
                migrate(empty)
            db.execute("DROP SCHEMA pgmta")
    assert migrate(empty)


def test_a_role_that_is_no_superuser_migrates_a_schema_of_its_group(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as db:
        name = db.info.dbname
        db.execute(f"CREATE SCHEMA pgmta AUTHORIZATION {ROLE}".encode())
        db.execute(f"GRANT CREATE ON DATABASE {name} TO {ROLE}".encode())
    assert migrate(make_conninfo(empty, options=f"-c role={ROLE}"))


def test_what_a_login_compiles_in_its_session_does_nothing_as_the_owner(
    database: str,
) -> None:
    """PL/pgSQL keeps a function as its first call compiled it: its types, and text of patterns."""
    with psycopg.connect(database, autocommit=True) as db:
        assert not db.execute("""
            SELECT p.oid::regprocedure FROM pg_proc AS p JOIN pg_language AS l ON l.oid = prolang
            WHERE pronamespace = 'pgmta'::regnamespace AND lanname = 'plpgsql'
                AND has_function_privilege('pgmta_submit', p.oid, 'EXECUTE')
                AND NOT coalesce(array_to_string(proconfig, ','), '') ~ 'search_path='
        """).fetchall()
        db.execute("""
            GRANT EXECUTE ON FUNCTION mailbox_domain_any TO pgmta_submit;
            SET SESSION AUTHORIZATION pgmta_submit;
            CREATE FUNCTION pg_temp.spy(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN RAISE 'runs as %', current_user; END $$;
            CREATE DOMAIN pg_temp.text AS pg_catalog.text
                CHECK (pg_temp.spy(VALUE::pg_catalog.text));
            SET standard_conforming_strings = off;
            SELECT pgmta.mailbox_domain_any('a@b_c.example');
        """)
        with pytest.raises(pg_errors.InvalidParameterValue, match="control character"):
            db.execute(SUBMIT, ("a\rb@b.example", MAIL))
        db.execute("SET standard_conforming_strings = on")
        with pytest.raises(pg_errors.InvalidParameterValue, match="control character"):
            db.execute(SUBMIT, ("a\rb@b.example", MAIL))
        db.execute(SUBMIT, ("a@b_c.example", b"Message-ID: <a@b>\r\n" + MAIL))
        db.execute("RESET SESSION AUTHORIZATION")
        assert fetch(db, "SELECT message_id_header FROM messages") == ("<a@b>",)


def test_an_operator_stores_no_condition_that_the_judge_refuses(db: psycopg.Connection) -> None:
    """A temporary type has the name of a type of PostgreSQL."""
    db.execute("SET SESSION AUTHORIZATION pgmta_operator")
    db.execute("""
        CREATE TYPE pg_temp.text AS (a int);
        CREATE FUNCTION pg_temp.nothing(pg_catalog.text) RETURNS pg_temp.text LANGUAGE sql
            AS 'SELECT NULL::pg_temp.text';
        CREATE CAST (pg_catalog.text AS pg_temp.text)
            WITH FUNCTION pg_temp.nothing(pg_catalog.text) AS ASSIGNMENT;
    """)
    with pytest.raises(pg_errors.InvalidParameterValue, match="a subselect is not allowed"):
        db.execute("INSERT INTO pgmta.rules (name, action, condition, reason, origin) VALUES"
                   " ('x', 'hold', '(SELECT true FROM pg_sleep(0))', 'r', 'operator')")  # fmt: skip
    db.execute("RESET SESSION AUTHORIZATION")
    # functions without a search_path declare nothing
    assert not db.execute("""
        SELECT p.oid::regprocedure FROM pg_proc AS p JOIN pg_language AS l ON l.oid = prolang
        WHERE pronamespace = 'pgmta'::regnamespace AND lanname = 'plpgsql' AND prosrc ~ 'DECLARE'
            AND (prorettype = 'trigger'::regtype
                OR has_function_privilege('pgmta_operator', p.oid, 'EXECUTE'))
            AND NOT coalesce(array_to_string(proconfig, ','), '') ~ 'search_path='
    """).fetchall()


def test_a_rule_and_a_condition_leave_the_path_of_the_transaction(db: psycopg.Connection) -> None:
    with db.transaction():
        db.execute("SET LOCAL search_path = pg_catalog, public")
        db.execute("SELECT pgmta.queue_condition('true')")
        db.execute("INSERT INTO pgmta.rules (name, action, condition, reason, origin)"
                   " VALUES ('x', 'hold', 'true', 'r', 'operator')")  # fmt: skip
        assert fetch(db, "SHOW search_path") == ("pg_catalog, public",)


@pytest.mark.parametrize("role", ["pgmta_smtpd", "pgmta_queued"])
def test_what_a_role_puts_into_its_search_path_does_nothing_as_the_owner(
    db: psycopg.Connection, role: str
) -> None:
    """queue_put runs as the owner with the search_path of its caller."""
    db.execute(
        f"""
        CREATE SCHEMA traps; GRANT USAGE ON SCHEMA traps TO {role};
        CREATE FUNCTION traps.spy(text, text) RETURNS boolean LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'captured'; END $$;
        CREATE FUNCTION traps.now() RETURNS timestamptz LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'captured'; END $$;
        CREATE FUNCTION traps.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'captured'; END $$;
        CREATE FUNCTION traps.unnest(anyarray) RETURNS SETOF anyelement
            LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
        CREATE FUNCTION traps.later(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'captured'; END $$;
        CREATE OPERATOR traps.> (FUNCTION = traps.later, LEFTARG = timestamptz,
            RIGHTARG = timestamptz);
        CREATE OPERATOR traps.= (FUNCTION = traps.spy, LEFTARG = text, RIGHTARG = text);
        CREATE OPERATOR traps.<> (FUNCTION = traps.spy, LEFTARG = text, RIGHTARG = text);
        CREATE OPERATOR traps.~ (FUNCTION = traps.spy, LEFTARG = text, RIGHTARG = text);
        CREATE DOMAIN traps.jsonb AS pg_catalog.text CHECK (traps.spy(VALUE, VALUE));
        CREATE FUNCTION traps.sprung() RETURNS boolean LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'captured'; END $$;
        CREATE DOMAIN traps.timestamptz AS pg_catalog.timestamptz CHECK (traps.sprung());
        CREATE DOMAIN traps.bytea AS pg_catalog.bytea CHECK (traps.sprung());
        CREATE DOMAIN traps.text AS pg_catalog.text CHECK (traps.sprung());
        SELECT suppress('c@d.example');
        SET ROLE {role}; SET search_path = traps, pg_catalog
    """.encode()
    )
    for domain, hold in (("NULL", "NULL"), ("'b.example'", "'why'")):
        message = (
            "pg_catalog.nextval('pgmta.message_ids'), 1, 5, NULL, 0, 'x', 'x', 'a@b.example',"
            f" {domain}, NULL, NULL, 'sql', NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
            " pg_catalog.now(), NULL, NULL"
        )
        db.execute(
            f"SELECT pgmta.queue_put(ARRAY[ROW({message})::pgmta.new_message],"
            f" ARRAY[ROW(1, 'c@d.example', 'd.example', NULL, {hold}, NULL, NULL)::pgmta.new_row])"
            .encode()
        )  # fmt: skip
    with pytest.raises(pg_errors.RaiseException, match="captured"):
        db.execute("SELECT 'a'::pg_catalog.text = 'b'")
