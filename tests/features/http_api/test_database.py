"""Transactions that act for a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import psycopg
import pytest

from pgmta.postgres.resources import Resources
from pgmta.store.schema import Schema
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.database import ApiDatabase
from pgmta_features.http_api.problem import Problem, not_found

SHOP = Caller("shop", "", frozenset({"send"}), ("@example.org",), "own")
SUBMIT = (
    "SELECT pgmta.submit(sender => 'a@example.org', recipients => ARRAY[%(to)s],"
    " content => E'Subject: x\\r\\n\\r\\nx\\r\\n'::bytea) AS id"
)


@pytest.fixture
async def database_for_api(as_api: str) -> AsyncIterator[ApiDatabase]:
    resources = Resources(as_api, "api")
    yield ApiDatabase(resources, Schema(), 1)
    await resources.close()


async def test_a_transaction_acts_for_its_key_and_no_longer(
    database_for_api: ApiDatabase, db: psycopg.Connection
) -> None:
    for _ in range(2):
        async with database_for_api.acting(SHOP) as session:
            assert await session.value("SELECT pgmta.acting()::text") == "key:shop"
            await session.value("SET LOCAL work_mem = '1MB'")
            found = await session.row(SUBMIT, {"to": "bob@example.com"})
            assert found
            await session.rows("SELECT pgmta.cancel(%(id)s)", {"id": found["id"]})
    async with database_for_api.acting(replace(SHOP, name="other")) as session:  # the same link
        assert await session.value("SELECT pgmta.acting()::text") == "key:other"
        assert await session.value("SHOW work_mem") != "1MB"
    assert db.execute("SELECT DISTINCT submitted_by FROM attempts").fetchall() == [("key:shop",)]
    assert db.execute("SELECT DISTINCT reply, event FROM attempts").fetchall()


async def test_errors_become_problems_and_store_nothing(
    database_for_api: ApiDatabase, db: psycopg.Connection
) -> None:
    async def run(*more: str, timeout_s: float = 2.0) -> None:
        async with database_for_api.acting(SHOP, timeout_s=timeout_s) as session:
            await session.value(SUBMIT, {"to": "bob@example.com"})
            for sql in more:
                await session.rows(sql, {"to": "bob"})
            raise not_found("message")

    for statements, status, word, pointer in [
        ((SUBMIT,), 422, "invalid", "/recipients"),
        (("SELECT pg_sleep(10)",), 503, "timeout", ""),
        (("SET LOCAL ROLE NONE", "SELECT pg_terminate_backend(pg_backend_pid())"),
         503, "database-away", ""),
        ((), 404, "not-found", ""),
    ]:  # fmt: skip
        with pytest.raises(Problem) as caught:
            await run(*statements, timeout_s=0.2)
        problem = caught.value
        assert (problem.status, problem.word, problem.pointer) == (status, word, pointer)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await run("SELECT * FROM pgmta.queue")
    assert db.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    async with database_for_api.acting(SHOP) as session:
        assert await session.value("SELECT 1") == 1


def test_only_the_api_and_the_owner_act_for_keys(db: psycopg.Connection) -> None:
    def acting(value: str, role: str) -> str:
        db.execute(f"SET SESSION AUTHORIZATION {role}".encode())
        try:
            db.execute("SELECT set_config('pgmta.acting', %s, false)", (value,))
            ((found,),) = db.execute("SELECT pgmta.acting()::text").fetchall()
            return str(found)
        finally:
            db.execute("RESET SESSION AUTHORIZATION")

    assert acting("key:shop", "pgmta_api") == "key:shop"
    assert acting("key:shop", "pgmta_submit") == "pgmta_submit"
    assert acting("key:shop", "pgmta_operator") == "pgmta_operator"
    for value in ("postgres", "pgmta_operator", "key:", "key:" + "x" * 60, ""):
        assert acting(value, "pgmta_api") == "pgmta_api", value
    # a role of that name has no say
    db.execute('CREATE ROLE "key:boss" SUPERUSER')
    try:
        db.execute("SET SESSION AUTHORIZATION pgmta_api")
        db.execute("SELECT set_config('pgmta.acting', 'key:boss', false)")
        query = "SELECT sees_all_mail(), sees_all_mail(true), acting_in('pgmta_operator'::regrole)"
        assert db.execute(query.encode()).fetchone() == (False, False, False)
    finally:
        db.execute("RESET SESSION AUTHORIZATION")
        db.execute('DROP ROLE "key:boss"')
