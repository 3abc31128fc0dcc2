"""A login that PostgreSQL refuses, or that lacks its role: the daemons say so, and wait."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo

from pgmta.errors import LoginRefused
from pgmta.postgres.link import Link
from pgmta.store.admin.daemons import Heartbeat
from pgmta.store.schema import Schema
from queued.cli.queuectl import main as queuectl
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from tests.support.daemons import Queued, Smtpd
from tests.support.system import System
from tests.support.waiting import until

MAIL = b"Subject: x\r\n\r\nx\r\n"
REFUSED = "PostgreSQL refuses the login"


@pytest.fixture
def login(db: psycopg.Connection) -> Iterator[str]:
    """The name of a login, which is not there yet, and may be made."""
    name = f"Login {uuid.uuid4().hex[:8]}"
    yield name
    db.execute(f'DROP ROLE IF EXISTS "{name}"')


@pytest.mark.slow
def test_daemons_wait_for_their_login_and_its_role(
    login: str, system: System, db: psycopg.Connection
) -> None:
    hop = system.hop()
    system.expected.add(REFUSED)
    uri = make_conninfo(system.uri, user=login)
    taker = Smtpd(system.folder, "smtpd", uri, {})
    sender = Queued(system.folder, "queued", uri, {"routes": {"*": hop.target}})
    system.daemons += [taker, sender]
    for number, (step, reason) in enumerate(
        (
            ("SELECT", f'role "{login}" does not exist'),
            (f'CREATE ROLE "{login}" LOGIN', 'run `GRANT pgmta_{} TO "{}";` as a superuser'),
            (f'GRANT pgmta_reader TO "{login}"', 'run `GRANT pgmta_{} TO "{}";` as a superuser'),
        ),
        1,
    ):
        db.execute(step)
        for daemon in (taker, sender):
            if number < 3:  # the same reason is logged again after a minute
                told = daemon.wait_log(REFUSED, number)["reason"]
                assert reason.format(daemon.module, login) in told
    with taker.connect() as client:
        assert client.send("a@b.example", ["z@hop.example"], MAIL).code == 451
        assert not taker.events("serving")
        db.execute(f'GRANT pgmta_smtpd, pgmta_queued TO "{login}"')
        taker.ready()
        sender.ready()
        until(lambda: client.send("a@b.example", ["z@hop.example"], MAIL).code == 250)
    hop.wait_kept(1)
    assert not taker.events("chunks of messages stay behind")


async def test_a_role_that_is_granted_later_counts(
    database: str, db: psycopg.Connection, login: str
) -> None:
    """Also that of another daemon is no substitute, though it may say that it lives."""
    db.execute(f'CREATE ROLE "{login}" LOGIN IN ROLE pgmta_smtpd')
    link = Link(make_conninfo(database, user=login), "test")
    heartbeat = Heartbeat(link, Schema(), "h:1:x", "queued", "h")
    with pytest.raises(LoginRefused, match="GRANT pgmta_queued"):
        await heartbeat.beat()
    db.execute(f'GRANT pgmta_queued TO "{login}"')
    await heartbeat.beat()
    await heartbeat.leave()


def test_check_logs_in(database: str, db: psycopg.Connection, login: str, tmp_path: Path) -> None:
    path = tmp_path / "daemon.yaml"

    def check(command: object, uri: str) -> Result:
        path.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
        return CliRunner().invoke(command, ["check", "-c", str(path)])  # type: ignore[arg-type]

    uri = make_conninfo(database, user=login)
    for step, reason in (
        ("SELECT", f'role "{login}" does not exist'),
        (f'CREATE ROLE "{login}" LOGIN IN ROLE pgmta_reader', f'GRANT pgmta_NAME TO "{login}";'),
        (f'GRANT pgmta_web TO "{login}"', f'GRANT pgmta_NAME TO "{login}";'),
    ):
        db.execute(step)
        for name, command in (("smtpd", smtpd), ("queued", queued)):
            refused = check(command, uri)
            assert refused.exit_code == 2
            assert refused.stderr.startswith(f"error: {path}:3: environment.database.uri: ")
            assert reason.replace("NAME", name) in refused.stderr
    missing = make_conninfo(database, dbname="none of these")
    away = "postgresql://postgres@127.0.0.1:1/x"
    for command in (smtpd, queued):
        assert 'database "none of these" does not exist' in check(command, missing).stderr
        unchecked = check(command, away)
        assert (unchecked.exit_code, unchecked.stdout) == (0, f"{path}: ok\n")
        assert f"{path}: the database was not checked: connection" in unchecked.stderr
        checked = check(command, database)
        assert (checked.exit_code, checked.output) == (0, f"{path}: ok\n")
    db.execute("INSERT INTO schema_migrations VALUES ('0002_next.sql', '')")
    for command in (smtpd, queued):
        unchecked = check(command, database)
        assert unchecked.exit_code == 0
        assert "the database was not checked: the database has migration" in unchecked.stderr
    db.execute(f'REVOKE pgmta_reader, pgmta_web FROM "{login}"')
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
    for arguments in (
        ["list"],
        ["list", "--where", "true"],
        ["workers"],
        ["list", "--count", "--by", "domain"],
    ):
        result = CliRunner().invoke(queuectl, [*arguments, "-c", str(path)])
        assert result.exit_code == 1
        assert f'`GRANT pgmta_operator TO "{login}";`' in result.stderr, arguments
