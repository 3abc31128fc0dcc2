"""The output of commands about rows, and the rows afterwards."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from pgmta.action import Action
from pgmta.mail.received_field import trace_field
from pgmta.postgres.link import Link
from pgmta.postgres.locate import DIRECTORY_VARIABLE, URI_VARIABLE
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.listing import waits_for
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queries import queries
from queued.cli.quarantine_retention import main as retention
from queued.cli.queuectl import main
from tests.support.queuectl import Command
from tests.support.rows import attempt, column, fetch, message, row

ROOT = Path(__file__).parents[4]


async def _repeat(database: str, change: RowChange) -> None:
    link = Link(database, "test", {})
    try:
        await WorkerChanges(link).run(change)
    finally:
        await link.close()


def test_filters_know_tenant_and_priority(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    rows = {
        row(db, 1, tenant=tenant, priority=priority): (tenant, priority)
        for tenant in ("", "shop", "Shop") for priority in (1, 5, 9)
    }  # fmt: skip

    def listed(*words: str) -> set[tuple[str, int]]:
        return {rows[each["id"]] for each in json.loads(command("list", *words, "--json").stdout)}

    assert listed("--tenant", "shop", "--priority", "<=5") == {("shop", 1), ("shop", 5)}
    assert listed("--tenant", "", "--tenant", "S*", "--priority", "6..9") == {
        ("", 9), ("shop", 9), ("Shop", 9),
    }  # fmt: skip
    assert listed("--priority", "1", "--priority", ">8") == {
        (tenant, priority) for tenant, priority in rows.values() if priority != 5
    }
    assert command("set", "--tenant", "shop", "--priority", "0", "--yes").exit_code == 0
    assert listed("--priority", "0") == set(rows.values()) & {("shop", p) for p in (1, 5, 9)}
    assert "priorities are 0 to 9" in command("list", "--priority", "10").stderr
    logged = command("list", "--count", "--since", "1d", "--priority", "1")
    assert "--priority is about rows of the queue" in logged.stderr
    assert command("list", "--count", "--since", "1d", "--tenant", "shop").exit_code == 0


def test_a_hold_without_an_end_has_none(
    database: str, db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    for number in range(4):
        row(db, 1, recipient=f"r{number}@b.example")
    assert command("hold", "--recipient", "r0@*", "--reason", "x", "--yes").exit_code == 0
    quarantine = ("hold", "--quarantine", "q", "--reason", "x", "--yes")
    assert command(*quarantine, "--recipient", "r1@*").exit_code == 0
    assert command("rule", "add", "r", "--recipient", "r2@*", "--reason", "x").exit_code == 0
    assert fetch(db, "SELECT expires_at FROM rules") == (None,)
    assert "36525d" not in command("rule", "list").stdout
    asyncio.run(_repeat(database, RowChange(Action.HOLD, "recipient ~ 'r2'", "w")))
    endless = RowChange(Action.HOLD, "recipient ~ 'r3'", "w", release_after=1e30)  # rule by SQL
    asyncio.run(_repeat(database, endless))
    assert column(db, "SELECT hold_until FROM queue WHERE recipient !~ 'r3'") == [None] * 3
    assert fetch(db, "SELECT sum(without_expiry)::int FROM hold_overview") == (3,)
    explained = command("explain", "1").stdout
    assert "until an operator releases it" in explained
    assert explained.count("  quarantine q\n") == 1
    assert "QUARANTINE" in command("show", "1").stdout


def test_explain_of_a_row_that_can_only_be_deleted(
    db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    row(db, 1, status="HOLD", recipient="a\r\nDATA@b.example")
    row(db, 1, status="HOLD", recipient="good@b.example")
    rows = json.loads(command("explain", "--json", "1").stdout)["recipients"]
    assert ["until an operator deletes it" in r["waits_for"] for r in rows] == [True, False]
    assert ["until an operator releases it" in r["waits_for"] for r in rows] == [False, True]


def test_a_held_row_says_why(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    held = {"status": "HOLD", "last_reply": "550 5.1.1 No such user"}
    row(db, 1, recipient="a@b.example", hold_reason="bounce limit: 5 DSNs", **held)
    row(db, 1, recipient="c@b.example", hold_reason="undeliverable", **held)
    found = command("find", "--sender", "s@a.example").stdout.splitlines()
    listed = command("list").stdout.splitlines()
    for lines in (sorted(found[1:]), listed[1:]):
        assert [line.endswith("  bounce limit: 5 DSNs") for line in lines] == [True, False]
        assert [line.endswith("  550 5.1.1 No such user") for line in lines] == [False, True]
    assert found[0].endswith("REPLY OR REASON")
    assert listed[0].endswith("REPLY OR REASON")
    explained = command("explain", "1").stdout
    assert "  next " not in explained
    assert "  on failure hold\n" in explained


def test_explain_says_when_a_row_is_given_up(
    db: psycopg.Connection, command: Command, config: Path
) -> None:
    settings = {
        **yaml.safe_load(config.read_text()),
        "retry": {"expire": "2d", "classes": {"mailbox_full": {"expire": "1h"}}},
        "shaping": "shaping.yaml",
    }
    config.write_text(yaml.safe_dump(settings))
    message(db, 1)
    began = datetime(2026, 11, 1, 12, tzinfo=UTC)
    for name, status, metadata in (
        ("plain", "DEFERRED", {}),
        ("full", "DEFERRED", {}),
        ("late", "DEFERRED", {"_deadline": "2026-11-02T12:00:00Z"}),
        ("route", "QUEUED", {}),
        ("held", "HOLD", {}),
    ):
        domain = "slow.example" if name == "route" else "b.example"
        row(db, 1, recipient=f"{name}@{domain}", domain=domain, ts=began, status=status,
            metadata=metadata, attempts=1)  # fmt: skip
    (full,) = column(db, "SELECT id FROM queue WHERE recipient LIKE 'full%'")
    attempt(db, full, started_at=began, **{"class": "mailbox_full"})
    unknown = command("explain", "1")
    assert unknown.exit_code == 0
    assert "shaping.yaml: No such file" in unknown.stderr
    assert "gives up" not in unknown.stdout
    assert command("explain", "--json", "1").stderr == unknown.stderr
    route = {"domain": "slow.example", "to": "mx", "retry": {"expire": "10d"}}
    (config.parent / "shaping.yaml").write_text(yaml.safe_dump({"routes": [route]}))
    explained = json.loads(command("explain", "--json", "1").stdout)["recipients"]
    assert {r["recipient"].partition("@")[0]: r["tried_until"] for r in explained} == {
        "plain": "2026-11-03T12:00:00Z",
        "full": "2026-11-01T13:00:00Z",
        "late": "2026-11-02T12:00:00Z",
        "route": "2026-11-11T12:00:00Z",
        "held": None,
    }
    assert command("explain", "1").stdout.count("  gives up   2026-11-") == 4


def test_both_say_who_submitted_a_message(
    database: str, db: psycopg.Connection, config: Path, command: Command
) -> None:
    """User and client, by the message while it is stored, and by the log of attempts then."""
    message(db, 5)
    number = row(db, 5)
    trace = trace_field("x\x1b) y", "2001:db8::7", "mx.example", "ESMTPSA (TLSv1.3 X)\r\n\t") + "5;"
    db.execute(
        "UPDATE messages SET trace = %s, submitted_by = 'ann@a.example', origin = 'user'", (trace,)
    )
    uri = make_conninfo(database, options="-c role=pgmta_reader")
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
    line = (
        "came from user ann@a.example, client 2001:db8::7 (x???y), by ESMTPSA (TLSv1.3 X), "
        "origin user\n"
    )
    assert line in command("explain", "5").stdout
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": database}}}))
    assert line in command("show", "5").stdout
    gone = line.replace(", origin user", "")
    db.execute("SELECT rows_log(ARRAY[%s::bigint], 'deleted', 'ann', 'ticket 1')", (number,))
    db.execute("DELETE FROM queue")
    for name in ("show", "explain"):
        said = command(name, "5").stdout
        assert gone in said
        assert "\nsender <s@a.example>\n" in said
        found = json.loads(command(name, "5", "--json").stdout)
        assert (found["user"], found["client"]) == ("ann@a.example", "2001:db8::7")


def test_show_names_every_sender(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    row(db, 1)
    row(db, 1, recipient="second@b.example")
    one = command("show", "1").stdout
    assert "\nsender <s@a.example>\n" in one
    assert "SENDER" not in one
    row(db, 1, sender="", recipient="third@b.example")
    several = command("show", "1").stdout
    assert "\nsenders <s@a.example>, <>\n" in several
    assert "  third@b.example   <>             QUEUED" in several


def test_retention_runs_from_cron(db: psycopg.Connection, config: Path, tmp_path: Path) -> None:
    message(db, 1)
    row(db, 1, status="HOLD", ts="2020-01-01", metadata={"_quarantineid": "suspects"})
    link = tmp_path / "link"
    link.symlink_to(ROOT / "scripts" / "quarantine-retention")
    done = subprocess.run(
        [str(link), "suspects", "--older", "30d", "-c", str(config), "--dry-run"],
        cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "would have deleted 1 rows of quarantine suspects\n"


@pytest.mark.parametrize("role", ["pgmta_operator", "pgmta_reader", "pgmta_queued"])
def test_roles_list_partitions_and_retention_says_at_once_that_it_may_not(
    database: str, db: psycopg.Connection, tmp_path: Path, role: str
) -> None:
    path = tmp_path / "role.yaml"
    uri = make_conninfo(database, options=f"-c role={role}")
    path.write_text(yaml.safe_dump({"environment": {"database": {"uri": uri}}}))
    message(db, 1)
    row(db, 1, ts="2020-01-01")
    if role != "pgmta_queued":
        for more in ([], ["--exact"]):
            words = ["database", "partition", "list", "-c", str(path), *more]
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
            assert "2020-01-01" in done.stdout
    done = CliRunner().invoke(retention, ["suspects", "--older", "30d", "-c", str(path)])
    if role == "pgmta_operator":
        assert done.stdout == "deleted 0 rows of quarantine suspects\n", done.output
        row(db, 1, status="HOLD", ts="2020-01-01", metadata={"_quarantineid": "suspects"})
        done = CliRunner().invoke(retention, ["suspects", "--older", "30d", "-c", str(path)])
        assert done.stdout == "deleted 1 rows of quarantine suspects\n", done.output
    else:
        assert done.exit_code == 1
        assert f"the role {role} may not change rows" in done.stderr


def test_conditions_that_begin_alike_are_told_apart(
    db: psycopg.Connection, command: Command
) -> None:
    same = "sender_domain = 'a-rather-long-name-of-a-sender.example' AND recipient ILIKE "
    ends = ("'%.one.example'", "'%.two.example'")
    for number, end in enumerate(ends):
        add = ("rule", "add", f"r{number}", "--where", f"{same}{end}", "--reason", "x")
        assert command(*add).exit_code == 0
        db.execute(
            "INSERT INTO workers (owner, name, action, condition, reach)"
            " VALUES ('h:1', %s, 'deliver', %s, 'true')",
            (f"w{number}", same + end),
        )
    for words in (("rule", "list"), ("workers",)):
        lines = command(*words).stdout.splitlines()
        assert [same + end in line for line, end in zip(lines[1:], ends, strict=True)] == [True] * 2


def test_a_list_goes_on_after_its_last_row(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    ids = [row(db, 1, recipient=f"r{n}@b.example", status="HOLD" if n % 2 else "QUEUED",
               ts=f"2026-01-0{9 - n}") for n in range(7)]  # fmt: skip
    page = command("list", "--limit", "3")
    assert [line.split()[7] for line in page.stdout.splitlines()[1:]] == [
        f"r{n}@b.example" for n in range(3)
    ]
    assert f"--after {ids[2]} shows the next" in page.stderr
    seen: list[int] = []
    while True:
        after = ("--after", str(seen[-1])) if seen else ()
        found = json.loads(command("list", "--json", "--limit", "3", *after).stdout)
        if not found:
            break
        seen += [each["id"] for each in found]
    assert seen == ids
    last = command("list", "--limit", "3", "--after", str(ids[3]), "--status", "hold")
    assert "r5@b.example" in last.stdout
    assert last.stderr == ""


def test_a_list_reads_no_more_than_its_page(database: str, db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO messages (id, size, trace, body)"
        " SELECT n, 4, '', 'body' FROM generate_series(1, 5000) AS n"
    )
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, status)"
        " SELECT n, '', 'r', 'b.example', (ARRAY['QUEUED', 'HOLD'])[1 + n % 2]"
        " FROM generate_series(1, 5000) AS n"
    )
    db.execute("ANALYZE queue, messages")
    page = queries("listing")["list"].fill(where="true", waits_for=waits_for())
    explained = db.execute(
        b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + page, {"limit": 10, "after": 1000}
    )
    (plan,) = explained.fetchone() or ("",)
    assert plan[0]["Plan"]["Actual Rows"] == 10
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 150


def test_a_domain_in_capitals_is_warned_of(db: psycopg.Connection, command: Command) -> None:
    row(db, message(db, 1))
    warnings: list[str | None] = []
    db.add_notice_handler(lambda notice: warnings.append(notice.message_primary))
    for name in ("sender_domain", "domain"):
        warning = f"{name} is in lower case, so 'B.Example' never matches"
        said = command("list", "--where", f"{name} = 'B.Example'")
        assert (said.exit_code, f"warning: {warning}" in said.stderr) == (0, True)
        assert command("list", "--where", f"{name} = 'b.example'").stderr == ""
        db.execute(f"SELECT queue_retry($${name} IN ('B.Example')$$)".encode())
        assert warnings.pop() == warning
    # the options ignore case
    assert "r@b.example" in command("list", "--domain", "B.Example").stdout


def test_a_command_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (URI_VARIABLE, DIRECTORY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    Path("etc").mkdir()
    for text, place in (("", "etc/var"), ("environment: {directory: ../data}\n", "data")):
        Path("etc/other.yaml").write_text(text)
        for words in (["list"], ["hold", "--id", "1", "--reason", "x"], ["workers"]):
            done = CliRunner().invoke(main, [*words, "-c", "etc/other.yaml"])
            assert done.exit_code == 1
            assert f"no embedded PostgreSQL in {tmp_path}/{place};" in done.stderr
    done = CliRunner().invoke(main, ["list"])
    assert done.exit_code == 2
    assert (
        "there is neither /etc/pgmta/queued.yaml nor etc/queued.yaml: give -c FILE" in done.stderr
    )
    assert [each.name for each in tmp_path.rglob("*")] == ["etc", "other.yaml"]
