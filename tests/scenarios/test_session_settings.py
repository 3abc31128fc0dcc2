"""Sessions set what they rely on, whatever settings the login, the database or the server has."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgmta import Mail, SyncClient
from pgmta.errors import StoreUnavailable
from pgmta.postgres.fit_session import SETTINGS
from pgmta.postgres.link import Link, connect
from pgmta.postgres.operator import connect_operator, connected
from pgmta.store.admin.migrate import migrate
from pgmta.store.queue.partitions import check, opened
from pgmta.store.queue.repartition import Repartition
from pgmta_features.lifecycle.installation import install
from queued.cli.queuectl import main as queuectl
from tests.support.database import fresh_database
from tests.support.system import System

ODD = {
    "DateStyle": "German, DMY", "IntervalStyle": "iso_8601", "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-15", "bytea_output": "escape", "client_encoding": "LATIN1",
    "standard_conforming_strings": "off", "escape_string_warning": "off", "array_nulls": "off",
    "backslash_quote": "off", "transform_null_equals": "on", "quote_all_identifiers": "on",
    "xmloption": "document", "row_security": "off", "search_path": "public",
    "default_transaction_isolation": "serializable", "default_transaction_deferrable": "on",
    "statement_timeout": "700ms", "lock_timeout": "1ms", "idle_session_timeout": "300ms",
    "idle_in_transaction_session_timeout": "1ms", "client_min_messages": "error",
    "exit_on_error": "on", "plan_cache_mode": "force_custom_plan", "synchronous_commit": "off",
    "check_function_bodies": "off",
}  # fmt: skip


def make_odd(db: psycopg.Connection, whose: sql.Composable) -> None:
    for name, value in ODD.items():
        text = sql.SQL("ALTER {} SET {} = {}")
        given = sql.SQL("public") if name == "search_path" else sql.Literal(value)
        db.execute(text.format(whose, sql.Identifier(name), given))


@pytest.fixture
def odd(database: str, db: psycopg.Connection) -> Iterator[str]:
    """URI of a login with every role, whose settings are all unusual."""
    login = f"odd_{uuid.uuid4().hex[:8]}"
    name = sql.Identifier(login)
    db.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(name))
    try:
        make_odd(db, sql.SQL("ROLE {}").format(name))
        yield make_conninfo(database, user=login)
    finally:
        db.execute(sql.SQL("DROP OWNED BY {}").format(name))
        db.execute(sql.SQL("DROP ROLE {}").format(name))


async def test_each_kind_of_session(odd: str) -> None:
    link = await connect(odd, "test", {"statement_timeout": "7s"})
    cursor = await link.execute("SELECT name, setting FROM pg_settings")
    settings = dict(await cursor.fetchall())
    await link.close()
    assert settings.pop("statement_timeout") == "7000"
    async with connected(odd) as command, opened(odd) as owner:
        for session in (command, owner):
            rows = await session.rows("SELECT name, setting FROM pg_settings")
            found = {row["name"]: row["setting"] for row in rows}
            assert found["lock_timeout"] != "1"
            found["lock_timeout"] = settings["lock_timeout"]  # commands wait for a while
            assert [found[name] for name in settings if name in SETTINGS] == [
                settings[name] for name in settings if name in SETTINGS
            ]
    there = {name: value for name, value in SETTINGS.items() if name in settings}
    assert {name: settings[name] for name in there} == there


def test_mail_goes_out_and_commands_work(odd: str, system: System, tmp_path: Path) -> None:
    system.uri, usual = odd, system.uri
    hop = system.hop()
    smtpd = system.smtpd()
    with smtpd.connect() as client:
        client.begin("app@a.example", ["bob@b.example", "eve@b.example"])
        assert client.finish(b"Subject: x\r\n\r\n" + b"x\r\n" * 10_000).code == 250
    with SyncClient(odd) as program:
        program.send(Mail(sender="app@a.example", to=["ann@b.example"], subject="é ☃", body="☃"))
    queued = system.queued(hop)
    hop.wait_kept(2)
    system.uri = usual
    system.wait_empty()
    system.enqueue("held@b.example", metadata='{"_partid": "7"}', status="HOLD")
    config = tmp_path / "odd.yaml"
    config.write_text(yaml.safe_dump({**queued.config, "environment": {"database": {"uri": odd}}}))

    def run(words: str) -> str:
        result = CliRunner().invoke(queuectl, [*words.split(), "-c", str(config)])
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.stdout

    (row,) = json.loads(run("find --recipient bob@b.example --json"))
    assert "delivered" in row.values(), row
    for words in (
        f"show {row['message_id']}", f"explain {row['message_id']}", f"status {row['message_id']}",
        "list", "workers", "list --count", "database partition check",
        "database partition add seven --partid 7",
        "suspend --domain c.example --reason r", "suspend --list", "rule list",
        "delete --domain b.example --reason r --yes",
    ):  # fmt: skip
        run(words)


async def test_a_database_is_made(server: str) -> None:
    with fresh_database(server) as uri, psycopg.connect(uri, autocommit=True) as db:
        make_odd(db, sql.SQL("DATABASE {}").format(sql.Identifier(db.info.dbname)))
        migrate(uri)
        install(uri)
        async with opened(uri) as owner:
            await Repartition(owner).add_partition("seven", ["7", None])
            assert [each for each in await check(owner, None) if each.severity == "problem"] == []


async def test_a_session_without_triggers_is_refused(database: str, db: psycopg.Connection) -> None:
    """Only a superuser may switch them on again."""
    login = f"plain_{uuid.uuid4().hex[:8]}"
    name = sql.Identifier(login)
    db.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE pgmta_operator").format(name))
    try:
        db.execute(sql.SQL("ALTER ROLE {} SET session_replication_role = replica").format(name))
        uri = make_conninfo(database, user=login)
        link = Link(uri, "test")
        with pytest.raises(StoreUnavailable, match=r"session_replication_role.*triggers"):
            await link.run("SELECT 1")
        with pytest.raises(StoreUnavailable, match=r"session_replication_role.*triggers"):
            await connect_operator(uri)
    finally:
        db.execute(sql.SQL("DROP OWNED BY {}").format(name))
        db.execute(sql.SQL("DROP ROLE {}").format(name))
