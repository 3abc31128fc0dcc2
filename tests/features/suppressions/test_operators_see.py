"""What operators see of suppressions: `queuectl explain`, and the check of `queuectl doctor`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import yaml
from click.testing import CliRunner

from pgmta.postgres.operator import connected
from pgmta.store.admin.examination import Examination
from pgmta_features.suppressions.doctor_check import checks
from queued.cli.doctor.diagnosis import Diagnosis
from queued.cli.queuectl import main
from tests.support.rows import message, row


def test_explain_says_why_mail_will_end(
    db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    db.autocommit = True
    message(db, 1)
    db.execute(
        "SELECT suppression_scope('news');"
        "SELECT suppress('ann@b.example', '', '', 'complained', 'message 123',"
        " '2026-11-03 14:02Z'),"
        " suppress('joe@b.example', '', 'news')"
    )
    row(db, 1, recipient="Ann@b.example")
    row(db, 1, recipient="ann@b.example", metadata={"_exempt": "test"})
    row(db, 1, recipient="joe@b.example")
    row(db, 1, recipient="joe@B.example", metadata={"_scope": "news"})
    row(db, 1, recipient="ann@b.example", status="HOLD", hold_reason="x", held_by="operator")
    path = tmp_path / "queuectl.yaml"
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    done = CliRunner().invoke(main, ["explain", "-c", str(path), "1"])
    lines = [line.strip() for line in done.stdout.splitlines() if "suppressed" in line]
    assert len(lines) == 3, done.output
    assert lines[0] == (
        "suppressed since 2026-11-03 14:02 UTC: complained (message 123); "
        "it ends before its next attempt"
    )
    assert ": operator (" in lines[1]
    assert lines[2].endswith("(message 123); it ends once it is released")


def test_doctor_names_the_reason_and_the_tenant_of_a_jump(
    db: psycopg.Connection, database: str
) -> None:
    db.autocommit = True

    def add(number: int, tenant: str, reason: str, ago: str, source: str = "") -> None:
        db.execute(
            "INSERT INTO suppressions (address, tenant, reason, source, at)"
            " SELECT format('%%s%%s@b.example', md5(%s), n), %s, %s, %s, now() - %s::interval"
            " FROM generate_series(1, %s) AS n",
            (tenant + reason + ago, tenant, reason, source, ago, number),
        )

    async def look() -> list[Diagnosis]:
        async with connected(database) as operator:
            check = (await checks(Examination(operator)))["suppressions"]
            return [each async for each in check()]

    add(2000, "", "bounced", "2 days")
    add(100, "", "bounced", "1 minute")  # no more than usual
    add(500, "", "operator", "1 minute", "import old.csv")
    assert asyncio.run(look()) == []
    add(90, "shop", "complained", "5 minutes")
    add(30, "", "complained", "5 minutes")
    (found,) = asyncio.run(look())
    assert found.severity == "warning"
    assert found.finding.startswith("120 addresses were suppressed as complained within the last ")
    assert found.finding.endswith("most for tenant shop")
