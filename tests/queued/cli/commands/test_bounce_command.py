"""queuectl bounce, and what commands say about DSNs and about answer classes."""

from __future__ import annotations

import json

import psycopg
import pytest

from pgmta.action import Action
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.settle import Settlements
from tests.sql.test_surface import outcome
from tests.support.queuectl import Command
from tests.support.reporting import duty, ends
from tests.support.rows import attempt, column, fetch, message, operate, row

LIMIT = "bounce limit: 100 per hour to s@a.example"


def test_a_bounce_says_what_it_would_do_and_does_it(
    db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    waiting, held, asked = (row(db, 1, status=s) for s in ("QUEUED", "HOLD", "DELETE"))
    row(db, 1, status="HOLD", recipient="a\nb@b.example")
    words = ("bounce", "--id", "1", "--reason", "ticket 4711")
    done = command(*words, "--dry-run")
    assert done.stdout == "bounce: would change 2 rows\n"
    assert "1 more rows stay on hold" in done.stderr
    assert column(db, "SELECT count(*) FROM queue WHERE status = 'REPORT'") == [0]
    assert command("bounce", "--all").exit_code == 2  # no reason
    assert json.loads(command(*words, "--yes", "--json").stdout) == {
        "action": "bounce", "matched": 3, "changed": 2, "stay": 1, "dry_run": False,
        "stopped": False,
    }  # fmt: skip
    found = db.execute(
        "SELECT id, hold_reason, held_by LIKE '%@%', held_at IS NOT NULL FROM queue"
        " WHERE status = 'REPORT' ORDER BY id"
    ).fetchall()
    assert found == [(each, "ticket 4711", True, True) for each in (waiting, held)]
    assert fetch(db, "SELECT status FROM queue WHERE id = %s", asked) == ("DELETE",)
    assert fetch(db, "SELECT action, rows, details ->> 'reason' FROM audit") == (
        "bounce", 2, "ticket 4711",
    )  # fmt: skip
    explained = command("explain", "1").stdout
    assert "a DSN to <s@a.example> by queued: ticket 4711" in explained
    assert explained.count("  worker ") == 2  # of the rows that are not in REPORT


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("event", [Event.DELIVERED, Event.DEFER, Event.UNKNOWN, Event.FAIL])
async def test_a_bounced_row_in_flight_is_reported_after_its_attempt(
    database: str, db: psycopg.Connection, command: Command, event: Event, *, once: bool
) -> None:
    """Not after a delivery, and not if it may have been one and `once` counts."""
    row(db, message(db, 1), once=once, on_failed="remove")
    link = Link(database, "test", {})
    try:
        (item,) = (await Claims(link, "w", 60).claim(1, [])).items
        assert await operate(database, RowChange(Action.BOUNCE, "true", "me", "why")) == 1
        state = "SELECT status, hold_reason, lease_token IS NULL FROM queue"
        assert fetch(db, state) == ("REPORT", "why", False)
        explained = command("explain", "1").stdout
        assert "waits for  the end of the attempt by w" in explained
        assert await Settlements(link, "w").settle([outcome(item, event)]) == {item.id}
    finally:
        await link.close()
    left = db.execute(state.encode()).fetchall()
    if event is Event.DELIVERED:
        assert left == []
    elif event is Event.UNKNOWN and once:
        unknown = "outcome unknown: a release may send a second copy; why"
        assert left == [("HOLD", unknown, True)]
    else:
        assert left == [("REPORT", "why", True)]


@pytest.mark.slow
async def test_a_bounced_row_whose_worker_died_has_an_unknown_outcome(
    database: str, db: psycopg.Connection
) -> None:
    db.execute("SELECT setval('message_ids', 1000)")
    row(db, message(db, 1))
    link = Link(database, "test", {})
    try:
        (item,) = (await Claims(link, "w", 60).claim(1, [])).items
        assert await operate(database, RowChange(Action.BOUNCE, "true", "me", "why")) == 1
    finally:
        await link.close()
    db.execute("UPDATE queue SET lease_until = now() - interval '1 s'")
    async with duty(database):
        await ends(db)
    found = db.execute("SELECT event, lease_token, worker, reply FROM attempts ORDER BY event")
    assert found.fetchall() == [
        ("failed", 0, "me", "why"),
        ("unknown", item.token, "w", "lease ran out: the worker died or lost the database"),
    ]


def test_no_reason_of_an_operator_is_taken_for_a_success(db: psycopg.Connection) -> None:
    for word in ("undeliverable", "relayed", "delivered", "delayed"):
        db.execute("TRUNCATE queue, messages")
        row(db, message(db, 1))
        assert fetch(db, "SELECT queue_bounce('true', %s)", word) == (1,)
        assert fetch(db, "SELECT report_kind, hold_reason FROM queue") == ("bounced", word)


def test_the_surplus_of_a_limit_is_found_and_deleted(
    db: psycopg.Connection, command: Command
) -> None:
    message(db, 1)
    for number in range(3):
        row(db, 1, status="HOLD", hold_reason=LIMIT, recipient=f"r{number}@b.example")
    row(db, 1, status="HOLD", hold_reason="no bounce limit")
    row(db, 1)
    surplus = ("--hold-reason", "bounce limit*")
    found = json.loads(command("list", "--count", "--by", "hold_reason", *surplus, "--json").stdout)
    assert [(each["hold_reason"], each["count"]) for each in found] == [(LIMIT, 3)]
    assert command("list", *surplus).stdout.count(LIMIT[:20]) == 3
    assert len(json.loads(command("list", "--hold-reason", "limit", "--json").stdout)) == 4
    done = command("delete", *surplus, "--reason", "forged", "--yes")
    assert done.stdout == "delete: 3 rows\n"
    assert column(db, "SELECT status FROM queue ORDER BY id") == [*["DELETE"] * 3, "HOLD", "QUEUED"]


def test_rows_and_attempts_are_counted_by_class(db: psycopg.Connection, command: Command) -> None:
    message(db, 1)
    domains = ["a.example", "a.example", "b.example", "c.example"]
    rows = [row(db, 1, status="DEFERRED", domain=each) for each in domains]
    for place, number, event, name in (
        (0, 1, "deferred", "dns"), (0, 2, "deferred", "greylisted"),
        (1, 1, "deferred", "greylisted"), (2, 1, "delivered", None),
    ):  # fmt: skip
        attempt(db, rows[place], attempt=number, event=event, domain=domains[place],
                **{"class": name})  # fmt: skip
        db.execute("UPDATE queue SET attempts = %s WHERE id = %s", (number, rows[place]))
    db.execute("UPDATE attempts SET ended_at = now() - interval '2 h' WHERE class = 'dns'")

    def counted(*words: str) -> dict[str, int]:
        found = json.loads(command("list", "--count", *words, "--json").stdout)
        return {str(each[next(iter(each))]): each["count"] for each in found}

    assert counted("--by", "class") == {"greylisted": 2, "None": 2}
    assert counted("--by", "class", "--domain", "a.example") == {"greylisted": 2}
    assert counted("--by", "class", "--since", "1h") == {"greylisted": 2, "None": 1}
    assert counted("--by", "class", "--since", "1d") == {"greylisted": 2, "dns": 1, "None": 1}
    assert counted("--since", "1d") == {"deferred": 3, "delivered": 1}
    assert counted("--since", "1d", "--by", "domain", "--attempts", ">1") == {"a.example": 1}
    assert counted("--since", "1d", "--sender", "*@A.example", "--reply", "450 la") == {
        "deferred": 3, "delivered": 1,
    }  # fmt: skip
    table = command("list", "--count", "--by", "class", "--since", "1d").stdout.splitlines()
    assert table[0].split() == ["CLASS", "COUNT", "OLDEST", "LATEST"]
    assert "-" in [line.split()[0] for line in table]
    for words, error in (
        (("--since", "1d", "--status", "hold"), "--status is about rows of the queue"),
        (("--since", "soon"), "or say how long ago"),
        (("--since", "1d", "--by", "clas"), "did you mean 'class'?"),
        (("--by", "host"), "--by 'host'"),
    ):
        done = command("list", "--count", *words)
        assert (done.exit_code, error in done.stderr) == (2, True), done.stderr


def test_show_and_explain_name_the_dsns(db: psycopg.Connection, command: Command) -> None:
    message(db, 7)
    row(db, 7, sender="")
    reports = [
        (7, "bob@b.example", "s@a.example", "failed", "unknown_user", None),
        (7, "carl@b.example", "s@a.example", "failed", "mailbox_full", "ticket 4711"),
        (None, "dora@b.example", None, "failed", "policy", "NOTIFY=NEVER"),
    ]
    for report in reports:
        db.execute(
            "INSERT INTO reports (report_id, message_id, row_id, recipient, sender, sent_to, kind,"
            " class, reason) VALUES (%s, 3, 1, %s, 's@a.example', %s, %s, %s, %s)",
            report,
        )
    for name in ("show", "explain"):
        about = command(name, "3")
        assert about.exit_code == 0, about.output
        lines = [line.split() for line in about.stdout.partition("\nreports\n")[2].splitlines()]
        assert [line[2:] for line in lines[1:]] == [
            ["bob@b.example", "failed", "<s@a.example>", "7", "unknown_user", "-"],
            ["carl@b.example", "failed", "<s@a.example>", "7", "mailbox_full", "ticket", "4711"],
            ["dora@b.example", "failed", "nobody", "-", "policy", "NOTIFY=NEVER"],
        ]
        dsn = command(name, "7").stdout
        assert "the DSN of message 3: failed, bob@b.example and 1 more\n" in dsn
        found = json.loads(command(name, "3", "--json").stdout)
        assert [each["reason"] for each in found["reports"]] == [
            None,
            "ticket 4711",
            "NOTIFY=NEVER",
        ]
        (origin, _) = json.loads(command(name, "7", "--json").stdout)["report_of"]
        assert (origin["message_id"], origin["recipient"]) == (3, "bob@b.example")
    assert command("show", "4").exit_code == 1


def test_report_rates(db: psycopg.Connection) -> None:
    for report_id, kind in ((7, "failed"), (7, "failed"), (8, "delayed"), (None, "failed")):
        db.execute(
            "INSERT INTO reports (at, report_id, message_id, row_id, recipient, sender, kind)"
            " VALUES (date_trunc('hour', now()), %s, 1, 1, 'r', 's', %s)",
            (report_id, kind),
        )
    rates = "SELECT dsns, failed, delayed, succeeded, unreported FROM report_rates"
    assert fetch(db, rates) == (2, 2, 1, 0, 1)
