"""Mail goes on while publications have our tables, as those of change data capture do."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner

from pgmta_features.lifecycle.installation import install
from queued.cli.doctor.server_checks import ServerChecks
from queued.cli.queuectl import main as queuectl
from tests.support.nexthop import Do, Transaction
from tests.support.operating import diagnosed
from tests.support.rows import fetch
from tests.support.system import System


def test_every_table_has_a_replica_identity(database: str, db: psycopg.Connection) -> None:
    """Those that operators and upkeep make too."""
    install(database)
    for log in ("attempts", "transcripts", "reports"):
        assert fetch(db, f"SELECT days_make('{log}', 12)") > (0,)
    assert diagnosed(database, lambda examination: ServerChecks(examination).publications()) == []


def fail_some(point: str, line: str, transaction: Transaction | None) -> Do | None:
    return Do(line="550 5.1.1 unknown") if point == "RCPT" and "nobody" in line else None


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ALL TABLES", "TABLES IN SCHEMA pgmta"])
def test_mail_goes_on(system: System, db: psycopg.Connection, tmp_path: Path, what: str) -> None:
    db.execute(f"CREATE PUBLICATION cdc FOR {what}".encode())
    hop = system.hop(fail_some)
    smtpd = system.smtpd()
    queued = system.queued(hop)
    config = tmp_path / "queued.yaml"
    config.write_text(yaml.safe_dump(queued.config))
    for recipients in (["bob@b.example"], ["nobody@b.example", "ann@b.example"]):
        with smtpd.connect() as client:
            client.begin("app@a.example", recipients)
            assert client.finish(b"Subject: x\r\n\r\n" + b"x\r\n" * 10_000).code == 250
    system.wait_empty()
    for name in ("carl", "dora"):
        system.enqueue(f"{name}@b.example", status="HOLD", metadata='{"_partid": "7"}')
    for words in (
        "database partition add queue_seven --partid 7,8",
        "database partition split queue_seven --partid 8 --into x",
        "release --recipient carl@b.example --yes", "delete --all --reason r --yes",
    ):  # fmt: skip
        result = CliRunner().invoke(queuectl, [*words.split(), "-c", str(config)])
        assert result.exit_code == 0, (words, result.output)
    system.wait_empty()
    assert fetch(db, "UPDATE attempts SET recipient = 'x' WHERE domain = 'b.example' RETURNING 1")
    assert sorted(each for mail in hop.kept for each in mail.recipients if "@b" in each) == [
        "ann@b.example", "bob@b.example", "carl@b.example",
    ]  # fmt: skip
