"""Conditions that fail on some rows: they stop nothing, and rows and conditions are named."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from pgmta.action import Action
from pgmta.postgres.link import Link
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue import failing_conditions
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.conditions import case_hint
from queued.daemon.queued import main as queued
from tests.sql.test_surface import linked
from tests.support.queuectl import Command
from tests.support.rows import column, fetch, message, operate, row

CAST = "(metadata->>'n')::int > 3"
ALPHA = "fails on this row: SQLSTATE 22P02 (no value of that type)"


def rule(db: psycopg.Connection, name: str, condition: str) -> None:
    db.execute(
        "INSERT INTO rules (name, action, condition, reason, origin)"
        " VALUES (%s, 'hold', %s, 'why', 'operator')",
        (name, condition),
    )


async def claim_all(claims: Claims) -> list[int]:
    taken: list[int] = []
    while items := (await claims.claim(50, [])).items:
        taken += [item.id for item in items]
    return sorted(taken)


@pytest.mark.parametrize("domains", [1, 300])  # a window; a walk over destinations
@pytest.mark.parametrize("own", [False, True])
async def test_a_row_on_which_a_condition_fails_stops_no_claim(
    db: psycopg.Connection, link: Link, domains: int, own: bool
) -> None:
    message(db, 1)
    bad = [row(db, 1, metadata={"n": "alpha"}, domain=f"d{n}.example") for n in range(3)]
    high = row(db, 1, metadata={"n": "4"})
    low = [row(db, 1, metadata={"n": "1"}, domain=f"d{n}.example") for n in range(domains)]
    if not own:
        rule(db, "r", CAST)
    claims = Claims(link, "w@h", 60, CAST if own else None)
    with capture_logs() as logs:
        assert await claim_all(claims) == ([high] if own else low)
    owner = "worker w" if own else "rule r"
    named = [(log["row"], log["condition"]) for log in logs if log["event"] == "a condition fails"]
    assert sorted(named) == [(one, owner) for one in bad]
    marks = column(db, "SELECT mark.value FROM queue, jsonb_each_text(faults) AS mark")
    assert marks == [f"{owner} {ALPHA}"] * 3
    # what comes later neither fails nor is named twice
    late = row(db, 1, metadata={"n": "beta"})
    good = row(db, 1, metadata={"n": "9" if own else "2"})
    with capture_logs() as logs:
        assert await claim_all(claims) == [good]
    assert [log["row"] for log in logs] == [late]
    if not own:
        db.execute("DELETE FROM rules")
        assert await claim_all(claims) == sorted([*bad, high, late])


async def test_marks_go_when_the_rows_are_mended(db: psycopg.Connection, link: Link) -> None:
    message(db, 1)
    bad, other = row(db, 1, metadata={"n": "alpha"}), row(db, 1, metadata={"n": "5"})
    claims = Claims(link, "w@h", 60, CAST)
    assert await claim_all(claims) == [other]
    db.execute('UPDATE queue SET metadata = \'{"n": "7"}\' WHERE id = %s', (bad,))
    assert await claim_all(claims) == []
    claims._rules.guard._until = 1.0  # a minute later
    assert await claim_all(claims) == [bad]
    assert column(db, "SELECT faults FROM queue") == [None, None]


async def test_rows_that_fail_are_held_by_a_hold_and_left_by_the_rest(
    db: psycopg.Connection, link: Link
) -> None:
    message(db, 1)
    changes = WorkerChanges(link)

    async def repeat(name: str) -> int:
        change = RowChange(Action(name), CAST, "me", "why", owner=f"rule {name}")
        return await changes.run(change, 2)

    bad = [row(db, 1, metadata={"n": "alpha"}, status="DEFERRED", due=60) for _ in range(3)]
    good = row(db, 1, metadata={"n": "4"}, status="DEFERRED", due=60)
    row(db, 1, metadata={"n": "1"}, status="DEFERRED", due=60)
    assert await repeat("retry") == 1
    assert column(db, "SELECT id FROM queue WHERE next_attempt <= now()") == [good]
    assert await repeat("hold") == 4
    held = "SELECT id, hold_reason FROM queue WHERE status = 'HOLD' ORDER BY id"
    assert db.execute(held).fetchall() == [
        *((one, f"rule hold {ALPHA}") for one in bad),
        (good, "why"),
    ]
    assert await repeat("release") == 1
    assert await repeat("delete") == 1
    assert column(db, "SELECT id FROM queue WHERE status = 'HOLD'") == bad
    # released by hand they are held again, and named again
    db.execute("UPDATE queue SET status = 'QUEUED' WHERE id = %s", (bad[0],))
    assert column(db, "SELECT faults FROM queue WHERE id = %s", bad[0]) == [None]
    assert await repeat("hold") == 1


def test_commands_go_on_where_a_condition_fails(
    db: psycopg.Connection, database: str, command: Command
) -> None:
    message(db, 7)
    bad = row(db, 7, metadata={"n": "alpha"})
    row(db, 7, metadata={"n": "4"})
    rule(db, "r", CAST)
    db.execute(
        "INSERT INTO workers (owner, name, action, condition, reach)"
        " VALUES ('h:1', 'w', 'deliver', %s, 'true')",
        (CAST,),
    )
    error = "SQLSTATE 22P02 (no value of that type)"
    told = command("workers")
    assert told.exit_code == 0, told.output
    assert f"rule r fails on 1 row, such as row {bad} of message 7: {error}" in told.stderr
    assert f"worker w fails on 1 row, such as row {bad} of message 7: {error}" in told.stderr
    counts = json.loads(command("workers", "--json").stdout)
    assert (counts["workers"][0]["matches"], counts["unmatched"]) == (1, 0)
    first = json.loads(command("explain", "--json", "7").stdout)["recipients"][0]
    assert first["fails"] == {"worker w": error, "rule r": error}
    assert (first["workers"], first["rules"]) == ([], ["r"])
    for words in (["list"], ["list", "--count"]):
        out = command(*words, "--json", "--where", CAST)
        assert (out.exit_code, len(json.loads(out.stdout))) == (0, 1), out.output
        assert f"row {bad} of message 7: {error}; left out" in out.stderr
    # of changes of many rows, only a hold takes the row
    for action, changed in (("retry", 1), ("delete", 1), ("hold", 2)):
        out = command(
            action,
            "--where",
            CAST,
            "--yes",
            "--json",
            *([] if action == "retry" else ["--reason", "ticket"]),
        )
        assert json.loads(out.stdout)["changed"] == changed, out.output
        assert "such as row" in out.stderr
    assert (
        fetch(db, "SELECT hold_reason FROM queue WHERE id = %s", bad)[0]
        == f"ticket: the condition fails on this row: {error}"
    )


async def test_a_change_of_many_rows_meets_rows_that_fail_between_its_batches(
    db: psycopg.Connection, database: str
) -> None:
    message(db, 1)
    for n in range(40):
        row(db, 1, metadata={"n": "alpha" if n % 7 == 3 else "5"})
    assert await operate(database, RowChange(Action.SET, CAST, "me", priority=1), 6) == 40 - 6
    assert await operate(database, RowChange(Action.HOLD, CAST, "me", "why"), 6) == 40


def test_a_rule_is_tried_on_the_rows_that_are_there(
    db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    bad = row(db, 1, metadata={"n": "alpha"})
    row(db, 1, metadata={"n": "1"})
    words = ("rule", "add", "r", "--where", CAST, "--reason", "why")
    refused = command(*words)
    assert refused.exit_code == 1
    assert f"rule r fails on 1 row, such as row {bad} of message 1: SQLSTATE" in refused.stderr
    assert column(db, "SELECT name FROM rules") == []
    forced = command(*words, "--force")
    assert forced.exit_code == 0, forced.output
    assert column(db, "SELECT name FROM rules") == ["r"]
    hint = command("rule", "add", "s", "--where", "sender LIKE '%@x'", "--reason", "why")
    assert (hint.exit_code, "sender LIKE is case-sensitive" in hint.stderr) == (0, True)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="syntax error"):  # by plain SQL
        rule(db, "t", "sender LIKE")


EXTREME: list[dict[str, Any]] = [
    {"ts": "infinity"},
    {"ts": "-infinity"},
    {"ts": "294276-12-31"},
    {"next_attempt": "-infinity"},
    {"next_attempt": "4000-01-01 BC"},
    {"attempts": 2147483647},
    {"metadata": {"_partid": {"a": [1]}, "n": "\\ud800", "": None}},
]


def test_extreme_values_stop_neither_claims_nor_commands(
    db: psycopg.Connection, database: str, command: Command
) -> None:
    async def claimed() -> list[int]:
        async with linked(database, **SESSION) as link:
            return await claim_all(Claims(link, "w", 60))

    message(db, 1)
    rows = [*(row(db, 1, **values) for values in EXTREME), row(db, 1)]
    for words in (
        ("workers",), ("list",), ("list", "--count"), ("explain", "1"), ("show", "1"),
        ("database", "partition", "list", "--exact"), ("retry", "--all", "--yes"),
    ):  # fmt: skip
        out = command(*words)
        assert out.exit_code == 0, (words, out.output)
    assert asyncio.run(claimed()) == rows
    assert fetch(db, "SELECT min(attempts) FROM queue") == (1,)


def test_a_filter_and_a_condition_find_every_case_of_a_domain(
    db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    for sender in ("a@x.org", "A@X.Org", "b@bücher.example", "", "a@xx.org"):
        row(db, 1, sender=sender, recipient=f"To@{sender.rpartition('@')[2] or 'None.example'}")
    domains = column(db, "SELECT sender_domain FROM queue ORDER BY id")
    assert domains == ["x.org", "x.org", "bücher.example", "", "xx.org"]
    for flag, pattern, number in (
        ("--sender", "*@X.ORG", 2),
        ("--sender", "a@X.oRg", 2),
        ("--sender", "*X.ORG", 3),
        ("--recipient", "*@X.ORG", 2),
        ("--recipient", "tO@x.orG", 2),
        ("--domain", "B.EXAMPLE", 5),
        ("--where", "sender_domain = 'x.org'", 2),
    ):
        out = command("list", "--count", "--json", flag, pattern)
        assert out.exit_code == 0, out.output
        assert json.loads(out.stdout)[0]["count"] == number, pattern
    db.execute("UPDATE queue SET sender = 'z@NEW.example' WHERE sender = ''")
    assert "new.example" in column(db, "SELECT sender_domain FROM queue")


HINTS = {
    "sender LIKE '%@x'": True,
    "domain = 'x' AND (sender NOT IN ('a'))": True,
    "recipient ~ 'x'": True,
    "sender = ''": False,
    "lower(sender) LIKE '%@x' OR sender ILIKE 'sender = x' OR recipient ~* 'x'": False,
    "sender_domain = 'x' AND metadata->>'sender' = 'x'": False,
    "sender_domain = 'Bad.Test'": True,
    "queue.domain IN ('a.test', 'B.test')": True,
    "domain NOT LIKE '%.Test'": True,
    "domain = ANY (ARRAY['a', 'B'])": True,
    "domain ILIKE 'Bad%' OR lower(domain) = 'x' OR metadata->>'domain' = 'X'": False,
    "domain = 'x' AND last_reply = 'Busy'": False,
}


def test_conditions_that_are_case_sensitive_are_told_of() -> None:
    assert {where: case_hint(where) is not None for where in HINTS} == HINTS


def test_queued_check_asks_the_database(database: str, server: str, tmp_path: Path) -> None:
    path = tmp_path / "queued.yaml"

    def check(uri: str | None, where: str) -> Result:
        database = {"uri": uri} if uri else {}
        path.write_text(
            yaml.safe_dump(
                {
                    "environment": {"directory": str(tmp_path / "var"), "database": database},
                    "workers": [{"name": "w", "where": where}],
                },
                width=1000,
            )
        )
        return CliRunner().invoke(queued, ["check", "-c", str(path)])

    good = check(database, "domain = 'x'")
    assert (good.exit_code, good.output) == (0, f"{path}: ok\n")
    wrong = check(database, "domian = 'x'")
    assert wrong.exit_code == 2
    place = f"error: {path}:7: workers[0].where: worker w: "
    reason = "column \"domian\" does not exist, at character 1; did you mean 'domain'?"
    assert wrong.stderr == f"{place}{reason}\n"
    for uri, reason in (
        ("postgresql://postgres@127.0.0.1:1/x", "connection"),
        (server, "run `queuectl database migrate`"),
        (None, "the embedded PostgreSQL does not run"),
    ):
        away = check(uri, "domian = 'x'")
        assert (away.exit_code, away.stdout) == (0, f"{path}: ok\n")
        assert f"{path}: the database and the conditions were not checked: " in away.stderr
        assert reason in away.stderr
    assert not (tmp_path / "var").exists()
    assert "is case-sensitive" in check(database, "sender = 'x'").stderr


async def test_marked_rows_are_all_reviewed_in_turn(
    db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_conditions, "MAX_BATCH_ROWS", 4)
    message(db, 1)
    bad = [row(db, 1, metadata={"n": "alpha"}) for _ in range(10)]
    claims = Claims(link, "w@h", 60, CAST)
    assert await claim_all(claims) == []
    db.execute('UPDATE queue SET metadata = \'{"n": "7"}\' WHERE id = %s', (bad[-1],))
    taken: list[int] = []
    for _ in range(3):  # 10 rows in batches of 4
        claims._rules.guard._until = 1.0  # a minute later
        taken += await claim_all(claims)
    assert taken == [bad[-1]]


def test_a_few_rows_are_tried_as_many_are(db: psycopg.Connection) -> None:
    message(db, 1)
    values = ["4", "alpha", "1", None] * 20
    ids = [row(db, 1, metadata={"n": value} if value else {}) for value in values]
    expected = {
        one: value == "4" for one, value in zip(ids, values, strict=True) if value in ("4", "alpha")
    }
    for where in (CAST, "(public.queue.metadata->>'n')::int > 3 AND queue.priority = 5"):
        for size in (1, 3, 17, 80):
            found: dict[int, bool] = {}
            for start in range(0, len(ids), size):
                part = ids[start : start + size]
                query = "SELECT id, error IS NULL FROM queue_test(%s, %s)"
                found.update(db.execute(query, (where, part)).fetchall())
            assert found == expected, (where, size)
