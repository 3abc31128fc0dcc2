"""Mail that operators give up: its senders get DSNs, by the real daemons; and floods of DSNs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queued.cli.queuectl import main
from tests.scenarios.test_reports import dsns, failed
from tests.support.daemons import Daemon
from tests.support.nexthop import Do, Transaction, holding_at
from tests.support.system import System

FAST = {"gather": "1s"}
REASON = "This mailbox is closed"


def queuectl(daemon: Daemon, *words: str) -> str:
    """Run queuectl on the daemon's database."""
    done = CliRunner().invoke(main, [words[0], "-c", str(daemon.path), *words[1:]])
    assert done.exit_code == 0, done.output
    return done.stdout


def read(daemon: Daemon, *words: str) -> Any:
    """The JSON that queuectl prints."""
    return json.loads(queuectl(daemon, *words, "--json"))


@pytest.mark.slow
def test_mail_that_waits_is_given_up(system: System) -> None:
    hop = system.hop(lambda point, line, _: (
        Do(line="450 4.2.2 Full") if point == "RCPT" and "<full" in line else None))  # fmt: skip
    worker = system.queued(hop, bounces=FAST, retry={"intervals": ["1h"]})
    waiting = system.enqueue("full1@x.example", "full2@x.example")
    held = system.enqueue(
        "held@x.example", status="HOLD", hold_reason="undeliverable",
        last_reply="550 5.1.1 No such user",
    )  # fmt: skip
    system.wait_queue(lambda rows: [r["status"] for r in rows] == ["DEFERRED", "DEFERRED", "HOLD"])
    words = ("bounce", "--recipient", "*@x.example", "--reason", REASON, "--yes")
    assert queuectl(worker, *words) == "bounce: 3 rows\n"
    hop.wait(lambda: len(dsns(hop)) == 2)
    by_names = {tuple(failed(dsn)): dsn.as_string() for dsn in dsns(hop)}
    full, one = by_names["full1@x.example", "full2@x.example"], by_names["held@x.example",]
    assert REASON in full
    assert "450 4.2.2" not in full  # a temporary reply is not why it failed
    assert REASON in one
    assert "550 5.1.1 No such user" in one
    system.wait_empty()
    events = {name: sorted(system.events(f"{name}@x.example")) for name in ("full1", "held")}
    assert events == {"full1": ["deferred", "failed"], "held": ["failed"]}
    for message_id in (waiting, held):
        reports = read(worker, "explain", str(message_id))["reports"]
        assert {each["sent_to"] for each in reports} == {"sender@example.org"}
        (dsn,) = {each["report_id"] for each in reports}
        origin = read(worker, "show", str(dsn))["report_of"]
        assert {each["message_id"] for each in origin} == {message_id}
    (change,) = system.ask("SELECT action, rows, details FROM audit")
    assert change == {"action": "bounce", "rows": 3, "details": {"reason": REASON}}


@pytest.mark.slow
def test_mail_that_is_given_up_by_a_plain_update_leaves_a_trace(system: System) -> None:
    """Whatever an operator writes as the reason: a word of a report, or none."""
    later = {"next_attempt": "2030-01-01"}
    kinds: dict[str, dict[str, Any]] = {
        "queued": later,
        "silent": {**later, "notify": "NEVER"},
        "word": {**later, "notify": "SUCCESS"},
        "held": {"status": "HOLD", "hold_reason": "x"},
        "lost": {"status": "HOLD", "hold_reason": "x", "report_kind": "unknown"},
        "relayed": {"status": "HOLD", "hold_reason": "x", "report_kind": "relayed"},
    }
    for name, columns in kinds.items():
        system.enqueue(f"{name}@x.example", **columns)
    with psycopg.connect(system.uri, options="-c role=pgmta_operator") as operator:
        operator.execute("""
            UPDATE pgmta.queue SET status = 'REPORT',
                hold_reason = CASE WHEN recipient ^@ 'word' THEN 'delivered' END
        """)
    hop = system.hop()
    system.queued(hop, bounces=FAST)
    system.wait_empty()
    for name in kinds:
        assert system.events(f"{name}@x.example") == ["failed"], name
    reports = system.ask("SELECT recipient, kind, report_id IS NULL AS no_dsn FROM reports")
    assert {r["recipient"].partition("@")[0]: (r["kind"], r["no_dsn"]) for r in reports} == {
        name: ("failed", name in ("silent", "word")) for name in kinds
    }


@pytest.mark.slow
def test_mail_in_flight_is_reported_unless_it_is_delivered(system: System) -> None:
    good, bad = system.hop(holding_at("end of data")), system.hop(holding_at("RCPT"))
    hop = system.hop()
    routes = {"good.example": good.target, "bad.example": bad.target, "*": hop.target}
    worker = system.queued(routes=routes, bounces=FAST)
    system.enqueue("one@good.example")
    system.enqueue("two@bad.example")
    good.wait(lambda: any(t.kept for t in good.transactions))
    bad.wait(lambda: bad.transactions and bad.transactions[0].asked)
    assert queuectl(worker, "bounce", "--all", "--reason", REASON, "--yes") == "bounce: 2 rows\n"
    assert {row["status"] for row in system.queue()} == {"REPORT"}
    bad.stop()
    good.release()
    hop.wait(lambda: dsns(hop))
    system.wait_empty()
    assert [failed(dsn) for dsn in dsns(hop)] == [["two@bad.example"]]
    assert system.events("one@good.example") == ["delivered"]
    assert sorted(system.events("two@bad.example")) == ["deferred", "failed"]


@pytest.mark.slow
def test_a_worker_gives_mail_up(system: System) -> None:
    hop = system.hop()
    bounce = {"name": "gone", "action": "bounce", "where": "domain = 'gone.example'",
              "reason": REASON, "every": "1s"}  # fmt: skip
    deliver = {"name": "deliver", "where": "domain <> 'gone.example'"}
    system.queued(hop, bounces=FAST, workers=[deliver, bounce])
    system.enqueue("a@gone.example")
    hop.wait(lambda: dsns(hop))
    (dsn,) = dsns(hop)
    assert failed(dsn) == ["a@gone.example"]
    assert REASON in dsn.as_string()
    system.wait_empty()


@pytest.mark.slow
def test_a_forged_flood_stops_at_the_limit_and_is_deleted(system: System, tmp_path: Path) -> None:
    """Other mail goes on; the rows beyond the limit are found and deleted by a command each."""

    def refuse(point: str, line: str, _: Transaction | None) -> Do | None:
        unknown = point == "RCPT" and "@flood.example>" in line
        return Do(line="550 5.1.1 No such user") if unknown else None

    hop = system.hop(refuse)
    limits = {"sender": 4, "all": 10}
    workers = [system.queued(hop, bounces={**FAST, "limits": limits}) for _ in range(2)]
    for number in range(60):
        sender = "one@victim.example" if number % 2 else f"v{number}@victim.example"
        system.enqueue(f"u{number}@flood.example", sender=sender, on_failed="bounce")
        system.enqueue(f"other{number}@good.example")
    others = {f"other{number}@good.example" for number in range(60)}
    hop.wait(lambda: others <= hop.deliveries().keys())
    system.wait_queue(lambda rows: rows and {row["status"] for row in rows} == {"HOLD"})
    hop.wait(lambda: len(dsns(hop)) == 10)
    to = [dsn["To"] for dsn in dsns(hop)]
    assert to.count("<one@victim.example>") <= 4
    surplus = ("--hold-reason", "bounce limit")
    counts = read(workers[0], "list", "--count", "--by", "hold_reason", *surplus)
    assert sum(each["count"] for each in counts) == 50
    assert len(read(workers[0], "list", *surplus)) == 50
    done = queuectl(workers[0], "delete", *surplus, "--reason", "forged", "--yes")
    assert done == "delete: 50 rows\n"
    system.wait_empty()
    assert len(dsns(hop)) == 10
    (rates,) = system.ask("SELECT dsns, failed FROM report_rates")
    assert rates == {"dsns": 10, "failed": 10}
