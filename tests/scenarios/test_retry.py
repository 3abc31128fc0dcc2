"""When queued tries again, and when it gives up: classes, routes, deadlines, unknown outcomes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.support.nexthop import Do, Script, Transaction, at, holding_at
from tests.support.system import Row, System
from tests.support.waiting import SLACK

NEVER = "9h"
GREYLISTED = "451 4.7.1 Greylisted, please try again later"
OVER = "4.4.7 the deadline of the message is over"
UNCERTAIN = "outcome unknown: a release may send a second copy"


def deadline(seconds: float) -> str:
    """Return metadata with a deadline that is this number of seconds from now."""
    return json.dumps({"_deadline": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()})


def answers(system: System, *rules: dict[str, Any]) -> str:
    """Return the name of a file with these answer rules."""
    path = system.folder / "answers.yaml"
    path.write_text(yaml.safe_dump({"rules": list(rules)}))
    return str(path)


def story(system: System, recipient: str) -> list[tuple[str, str | None]]:
    """Return event and class of each attempt."""
    return [(each["event"], each["class"]) for each in system.attempts(recipient)]


def test_greylisted_mail_is_tried_after_its_own_wait(system: System) -> None:
    """And mail of another class of the same host after the usual one."""
    left = {"grey@hop.example": [GREYLISTED], "busy@hop.example": ["450 4.2.1 Mailbox busy"]}

    def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
        for recipient, replies in left.items():
            if point == "RCPT" and recipient in line and replies:
                return Do(line=replies.pop())
        return None

    hop = system.hop(script)
    retry = {"intervals": [NEVER], "classes": {"greylisted": {"first": "1s"}}}
    rule = {"text": "greylisted", "class": "greylisted"}
    system.queued(hop, retry=retry, answers=answers(system, rule))
    system.enqueue("grey@hop.example", "busy@hop.example")
    system.wait_status(busy="DEFERRED")
    assert story(system, "grey@hop.example") == [("deferred", "greylisted"), ("delivered", None)]
    assert [event for event, _ in story(system, "busy@hop.example")] == ["deferred"]
    first, second = system.attempts("grey@hop.example")
    assert (second["started_at"] - first["ended_at"]).total_seconds() >= 0.9


def test_a_host_that_lies(system: System) -> None:
    """Rules say that a 550 passes, and that a 450 does not."""
    rules = answers(
        system,
        {"text": "quota for today", "class": "rate_limited", "lasting": "temporary"},
        {"text": "closed for ever", "class": "disabled", "lasting": "permanent"},
    )
    left = ["550 5.7.1 Quota for today is used up"]

    def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT" and "passes@" in line and left:
            return Do(line=left.pop())
        if point == "RCPT" and "lasts@" in line:
            return Do(line="450 4.2.1 This mailbox is closed for ever")
        return None

    hop = system.hop(script)
    system.queued(hop, answers=rules, retry={"intervals": ["200ms"]})
    system.enqueue("passes@hop.example", "lasts@hop.example")
    rows = system.wait_status(lasts="HOLD")
    assert story(system, "passes@hop.example") == [
        ("deferred", "rate_limited"),
        ("delivered", None),
    ]
    assert story(system, "lasts@hop.example") == [("failed", "disabled")]
    assert rows["lasts"]["hold_reason"] == "undeliverable"


def test_each_route_has_its_own_retry(system: System) -> None:
    hop = system.hop(at("RCPT", "450 4.2.1 Mailbox busy"))
    routes = [
        {"domain": "once.example", "to": hop.target, "retry": {"attempts": 1}},
        {"domain": "thrice.example", "to": hop.target,
         "retry": {"exponential": {"first": "100ms", "factor": 2.0, "most": "1s"}, "attempts": 3}},
        {"domain": "class.example", "to": hop.target,
         "retry": {"intervals": ["100ms"], "classes": {"mailbox_full": {"attempts": 2}}}},
    ]  # fmt: skip
    (system.folder / "shaping.yaml").write_text(yaml.safe_dump({"routes": routes}))
    system.queued(
        hop, shaping=str(system.folder / "shaping.yaml"), retry={"intervals": [NEVER]}
    )  # fmt: skip
    # one transaction has rows of several routes, because their hosts are the same
    system.enqueue("a@once.example", "b@thrice.example", "c@usual.example")
    hop.script = at("RCPT", "452 4.2.2 Mailbox full")
    system.enqueue("d@class.example")
    rows = system.wait_status(a="HOLD", b="HOLD", c="DEFERRED", d="HOLD")
    for name, address, attempts in [
        ("a", "a@once.example", 1), ("b", "b@thrice.example", 3), ("d", "d@class.example", 2)
    ]:  # fmt: skip
        events = story(system, address)
        assert [event for event, _ in events] == ["deferred"] * (attempts - 1) + ["failed"]
        assert events[-1][1] == "expired"
        assert f"(given up after {attempts} attempts)" in rows[name]["last_reply"]
    assert len(system.attempts("c@usual.example")) == 1


@pytest.mark.slow
def test_no_attempt_begins_after_the_deadline(system: System) -> None:
    hop = system.hop(at("RCPT", "450 4.2.1 Mailbox busy"))
    system.queued(hop, retry={"intervals": [NEVER]})
    system.enqueue("soon@hop.example", metadata=deadline(2))
    system.enqueue("over@hop.example", metadata=deadline(-1))
    system.enqueue("far@hop.example", metadata=deadline(3600))
    rows = system.wait_status(soon="HOLD", over="HOLD", far="DEFERRED")
    assert story(system, "over@hop.example") == [("failed", "expired")]
    assert [event for event, _ in story(system, "soon@hop.example")] == ["deferred", "failed"]
    assert story(system, "soon@hop.example")[-1] == ("failed", "expired")
    assert rows["soon"]["last_reply"] == rows["over"]["last_reply"] == OVER
    end = datetime.fromisoformat(rows["soon"]["metadata"]["_deadline"])
    assert system.attempts("soon@hop.example")[-1]["ended_at"] >= end
    far = datetime.fromisoformat(rows["far"]["metadata"]["_deadline"])
    assert rows["far"]["next_attempt"] <= far + timedelta(seconds=SLACK)
    asked = [recipient for each in hop.transactions for recipient in each.asked]
    assert sorted(asked) == ["far@hop.example", "soon@hop.example"]


@pytest.mark.slow
def test_mail_whose_deadline_comes_while_it_waits_for_a_connection(system: System) -> None:
    hop = system.hop(holding_at("end of data"))
    system.queued(hop, delivery={"connections": 1})
    system.enqueue("first@hop.example")
    hop.wait_kept(1)
    system.enqueue("late@hop.example", metadata=deadline(2))
    system.enqueue("patient@hop.example", metadata=deadline(3600))
    system.wait_queue(lambda rows: all(row["status"] == "SENDING" for row in rows))
    (late,) = [row for row in system.queue() if row["recipient"].startswith("late")]
    wait_until(system, late["metadata"]["_deadline"])
    hop.release()
    rows = system.wait_status(late="HOLD")
    assert rows["late"]["last_reply"] == OVER
    assert story(system, "late@hop.example") == [("failed", "expired")]
    assert hop.deliveries() == {"first@hop.example": 1, "patient@hop.example": 1}


def wait_until(system: System, time: str) -> None:
    """Wait until the database's clock has passed a time."""
    system.ask("SELECT pg_sleep_until(%s::timestamptz + interval '10 ms')", time)


def test_a_bad_deadline_is_told_and_ignored(system: System) -> None:
    hop = system.hop(at("RCPT", "450 4.2.1 Mailbox busy", times=2))
    daemon = system.queued(hop, retry={"intervals": ["1s"]})
    values = {"a": "tomorrow", "b": 7, "c": ["2026-01-01T00:00:00Z"], "d": "\x1b[31m" + "é" * 3000}
    system.enqueue("late@hop.example", metadata=json.dumps({"_deadline": "tomorrow"}))
    rows = system.wait_status(late="DEFERRED")
    reason = "it is no time of RFC 3339 with its zone, such as 2026-01-31T09:30:00Z"
    assert rows["late"]["last_reply"].endswith(f"(_deadline 'tomorrow' is ignored: {reason})")
    for name, value in values.items():
        system.enqueue(f"{name}@hop.example", metadata=json.dumps({"_deadline": value}))
    system.wait_empty()
    assert set(hop.deliveries()) == {f"{name}@hop.example" for name in ("late", *values)}
    told = daemon.events("a deadline is ignored")
    assert sum(1 + entry["others"] for entry in told) == 1 + len(values)


def cutting(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """A next hop that has the message, and cuts the connection before it says so."""
    return Do(drop=True) if point == "end of data" else None


POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "remove": {"on_failed": "remove"},
    "once": {"once": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["hold", "delivered"])
def test_unknown_outcomes_are_not_tried_again(system: System, policy: str) -> None:
    script: Script = cutting
    hop = system.hop(script)
    daemon = system.queued(
        hop, retry={"unknown": policy, "intervals": ["100ms"]}, process={"lease": "3s"}
    )
    for name, columns in POLICIES.items():
        system.enqueue(f"{name}@hop.example", **columns)
    expected = {"once": "HOLD"} | ({"plain": "HOLD", "remove": "HOLD"} if policy == "hold" else {})
    rows = system.wait_status(**expected)
    for name in POLICIES:
        assert [event for event, _ in story(system, f"{name}@hop.example")] == ["unknown"]
    for row in rows.values():
        assert row["hold_reason"] == UNCERTAIN
        assert row["lease_token"] is None
    assert hop.deliveries() == dict.fromkeys((f"{name}@hop.example" for name in POLICIES), 1)
    # a lost lease may mean that the mail never left: it is tried again under each policy
    hop.script = holding_at("RCPT")
    system.enqueue("lost@hop.example")
    hop.wait(lambda: any("lost@" in command for command in hop.commands))
    daemon.kill()
    hop.script = lambda point, line, transaction: None
    hop.release()
    system.queued(hop, retry={"unknown": policy}, process={"lease": "3s", "poll": "100ms"})
    hop.wait(lambda: hop.deliveries()["lost@hop.example"])
    done: list[Row] = system.wait_queue(
        lambda rows: not any("lost@" in row["recipient"] for row in rows)
    )
    assert len(done) == len(expected)
    assert [event for event, _ in story(system, "lost@hop.example")] == ["unknown", "delivered"]
