"""A database from before the baseline: nothing works on it, and nothing changes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from pgmta.errors import FormerDatabase
from queued.cli.queuectl import main as queuectl
from queued.daemon.queued import main as queued
from smtpd.cli import main as smtpd
from tests.sql.test_schema import FORMER_TABLES, dump
from tests.support.daemons import Daemon, Queued, Smtpd
from tests.support.database import fresh_database, with_database
from tests.support.waiting import PATIENCE

REASON = str(FormerDatabase())
SAID = f"error: {REASON}"
OLD = "INSERT INTO pgmta.daemons VALUES ('p', 'queued', 'h', 1, '0', '0057_names.sql', '-infinity')"
TABLES = ("CREATE SCHEMA pgmta", FORMER_TABLES.format(schema="pgmta"), OLD)


@pytest.fixture
def former(server: str) -> Iterator[str]:
    """URI of such a database."""
    with fresh_database(server) as uri:
        with psycopg.connect(uri, autocommit=True) as db:
            for statement in TABLES:
                db.execute(statement.encode())
        yield uri


def refused(daemon: Daemon) -> None:
    """Wait until the daemon has ended, with one line and the code of a wrong configuration."""
    try:
        daemon.wait_log(SAID)
        assert daemon.process.wait(PATIENCE) == 2
        bad = [e["event"] for e in daemon.log if e["level"] not in ("info", "debug")]
        assert bad == [SAID], daemon.story()
        assert not daemon.events("serving")
        assert not daemon.events("ready")
    finally:
        daemon.kill()


@pytest.mark.slow
def test_both_daemons_end_at_their_start(former: str, tmp_path: Path) -> None:
    before = dump(former)
    wrong = {"action": "hold", "where": "no_such_column = 1", "reason": "x"}
    for daemon in (
        Smtpd(tmp_path, "smtpd", former, {"processes": 2}),
        Queued(tmp_path, "queued", former, {}),
        Queued(tmp_path, "rules", former, {"workers": [{"name": "w", **wrong}]}),
    ):
        refused(daemon)
    assert dump(former) == before


@pytest.mark.slow
def test_daemons_that_waited_for_postgresql_end_when_they_see_it(
    server: str, tmp_path: Path
) -> None:
    with fresh_database(server) as uri:
        name = psycopg.conninfo.conninfo_to_dict(uri)["dbname"]
        with psycopg.connect(with_database(server, "postgres"), autocommit=True) as db:
            db.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            daemons = (Smtpd(tmp_path, "smtpd", uri, {}), Queued(tmp_path, "queued", uri, {}))
            try:
                for daemon in daemons:
                    daemon.wait_log("PostgreSQL refuses the login")
                db.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
                with psycopg.connect(uri) as other:
                    for statement in TABLES:
                        other.execute(statement.encode())
                for daemon in daemons:
                    daemon.wait_log(SAID)
                    assert daemon.process.wait(PATIENCE) == 2
            finally:
                for daemon in daemons:
                    daemon.kill()


def test_commands_refuse_it(former: str, tmp_path: Path) -> None:
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": former}}}))
    before = dump(former)
    for command, words in (
        (queued, ["check"]),
        (smtpd, ["check"]),
        (queuectl, ["status", "1"]),
        (queuectl, ["list"]),
        (queuectl, ["database", "migrate"]),
        (queuectl, ["rule", "add", "x", "--where", "true", "--reason", "r"]),
        (queuectl, ["rule", "list"]),
        (queuectl, ["database", "partition", "list"]),
    ):
        result = CliRunner().invoke(command, [*words, "-c", str(config)])
        assert (result.output, result.exit_code) == (f"error: {REASON}\n", 2), words
    assert dump(former) == before
    found = CliRunner().invoke(queuectl, ["doctor", "--no-network", "-c", str(config)]).stdout
    assert f"error    database: {REASON}\n" in found
    assert "start PostgreSQL" not in found
