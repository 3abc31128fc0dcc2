"""Rights that were lost, as in a restore without privileges, are named with their remedy."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgmta.errors import LoginRefused
from pgmta.postgres.link import Link
from pgmta.postgres.operator import connect_operator, connected
from pgmta.store.admin.daemons import Heartbeat, misfit
from pgmta.store.admin.examination import Examination
from pgmta.store.schema import Schema
from pgmta_features.lifecycle.installation import install
from queued.cli.doctor.server_checks import ServerChecks
from tests.support.operating import diagnosed
from tests.support.rows import fetch

REMEDY = "SELECT pgmta.grants();"
MISSING = "SELECT role, privilege, object FROM pgmta.missing_rights()"


@pytest.fixture
def login(database: str, db: psycopg.Connection) -> Iterator[str]:
    """URI of a login that is in the roles of queued and of operators."""
    name = f"lost_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE ROLE {name} LOGIN IN ROLE pgmta_queued, pgmta_operator".encode())
    yield make_conninfo(database, user=name)
    db.execute(f"DROP ROLE {name}".encode())


@pytest.mark.slow
def test_each_right_is_missed(db: psycopg.Connection) -> None:
    assert db.execute(MISSING.encode()).fetchall() == []
    version = db.info.server_version
    rights = db.execute(
        "SELECT object, role, hit[1] || coalesce(hit[2], ''), hit[1] FROM rights,"
        " regexp_matches(privileges, '([A-Z]+)( [(][^)]*[)])?', 'g') AS hit"
    ).fetchall()
    assert len(rights) > 200
    for thing, role, right, privilege in rights:
        if privilege == "MAINTAIN" and version < 170000:
            continue
        grantee = sql.SQL("PUBLIC") if role == "PUBLIC" else sql.Identifier(role)
        revoke = sql.SQL(f"REVOKE {right} ON {thing} FROM {{}}").format(grantee)
        with db.transaction(force_rollback=True):
            db.execute(revoke)
            if role == "PUBLIC":
                role = "public"
            assert (role, privilege, thing) in db.execute(MISSING.encode()).fetchall(), revoke


async def test_a_restore_without_privileges(login: str, db: psycopg.Connection) -> None:
    """Tables of an application in schema public are never ours."""
    db.execute(
        "REVOKE ALL ON SCHEMA pgmta FROM pgmta_queued, pgmta_operator;"
        "CREATE TABLE public.schema_migrations (version text PRIMARY KEY);"
        "CREATE TABLE public.message_chunks (message_id bigint, position int, data bytea);"
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC"
    )
    link, schema = Link(login, "test"), Schema()
    for call in (
        lambda: misfit(link, "queued"),
        Heartbeat(link, schema, "h:1:a", "queued", "h").beat,
    ):
        with pytest.raises(LoginRefused, match="lacks rights in schema pgmta.*grants"):
            await call()
    with pytest.raises(errors.UndefinedTable):
        await link.run("SELECT FROM message_chunks")
    with pytest.raises(LoginRefused, match="lacks rights in schema pgmta.*grants"):
        await connect_operator(login)
    db.execute("SELECT pgmta.grants()")
    await link.close()
    assert await misfit(link, "queued") == ""
    await link.close()


@pytest.mark.parametrize(
    "revoke",
    [
        "SELECT ON schema_migrations FROM pgmta_queued, pgmta_operator",
        "EXECUTE ON FUNCTION missing_rights FROM PUBLIC",
        "DELETE ON queue FROM pgmta_queued",
        "EXECUTE ON FUNCTION days_make FROM pgmta_queued",
    ],
)
async def test_one_lost_right(
    login: str, database: str, db: psycopg.Connection, revoke: str
) -> None:
    db.execute(f"REVOKE {revoke}".encode())
    link = Link(login, "test")
    with pytest.raises(LoginRefused, match="pgmta_queued lacks.*grants"):
        await misfit(link, "queued")
    await link.close()
    async with connected(database) as operator:
        roles = ServerChecks(Examination(operator)).roles()
        found = [each async for each in roles if REMEDY in each.remedy]
    assert found
    assert all(each.severity == "error" for each in found)
    assert fetch(db, "SELECT grants()") == ([],)


def test_each_right_to_lifecycle_is_missed(database: str, db: psycopg.Connection) -> None:
    install(database)
    missing = "SELECT role, privilege, object FROM pgmta.missing_rights('lifecycle')"
    assert db.execute(missing.encode()).fetchall() == []
    rights = db.execute("SELECT object, role, privileges FROM lifecycle.rights").fetchall()
    assert len(rights) > 10
    db.execute("SET search_path = lifecycle")
    for thing, role, right in rights:
        with db.transaction(force_rollback=True):
            revoke = sql.SQL(f"REVOKE {right} ON {thing} FROM {{}}").format(sql.Identifier(role))
            db.execute(revoke)
            lost = (role, right.partition(" ")[0], thing)
            assert lost in db.execute(missing.encode()).fetchall(), revoke
    db.execute("REVOKE USAGE ON SCHEMA lifecycle FROM pgmta_queued")
    (found,) = diagnosed(database, lambda examination: ServerChecks(examination).roles())
    assert (found.severity, "lifecycle.grants()" in found.remedy) == ("error", True)


def test_the_table_of_a_stranger_is_not_read(login: str, db: psycopg.Connection) -> None:
    name = str(conninfo_to_dict(login)["user"])
    db.execute(f"CREATE SCHEMA other AUTHORIZATION {name}".encode())
    with psycopg.connect(login, autocommit=True) as stranger:
        stranger.execute(
            "CREATE FUNCTION other.act() RETURNS text LANGUAGE plpgsql AS"
            " $$ BEGIN DROP TABLE pgmta.rights CASCADE; RETURN 'x'; END $$;"
            "CREATE VIEW other.rights AS"
            " SELECT other.act() AS object, 'x' AS role, 'SELECT' AS privileges"
        )
        assert stranger.execute("SELECT FROM pgmta.missing_rights('other')").fetchall() == []
    db.execute("DROP SCHEMA other CASCADE")
