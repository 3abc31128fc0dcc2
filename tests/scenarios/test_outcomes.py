"""Answers of a next hop, and the row afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nexthop import EXTENSIONS, Do, Script, Transaction, at, hanging_at
from tests.support.system import Row, System

LATER = {"intervals": ["1h"]}
LOCK_STEP = tuple(word for word in EXTENSIONS if word != "PIPELINING")
both = pytest.mark.parametrize("extensions", [EXTENSIONS, LOCK_STEP], ids=["piped", "lock-step"])

# name: script, status afterwards (None: delivered), event, how last_reply begins, code, command
CASES: dict[str, tuple[Script, str | None, str, str, int, str]] = {
    "mail5": (at("MAIL", "550 5.7.1 Go away"), "HOLD", "failed", "550 5.7.1 Go", 550, "MAIL"),
    "mail4": (at("MAIL", "450 4.7.1 Grey"), "DEFERRED", "deferred", "450 4.7.1 Grey", 450, "MAIL"),
    "data5": (at("DATA", "554 5.5.1 No"), "HOLD", "failed", "554 5.5.1 No", 554, "DATA"),
    "data2": (at("DATA", "250 2.0.0 Ok"), "DEFERRED", "deferred", "250 2.0.0 Ok", 250, "DATA"),
    "dot5": (
        at("end of data", "554-5.6.0 Two\r\n554 5.6.0 lines"),
        *("HOLD", "failed", "554 5.6.0 Two 5.6.0 lines", 554, "end of data"),
    ),
    "dot4": (
        at("end of data", "452 4.3.1 Disk full"),
        *("DEFERRED", "deferred", "452 4.3.1 Disk", 452, "end of data"),
    ),
    "dot3": (at("end of data", "354 More"), "DEFERRED", "unknown", "354", 354, "end of data"),
    "dot421": (
        at("end of data", "421 4.3.2 Down", drop=True),
        *("DEFERRED", "deferred", "421 4.3.2 Down", 421, "end of data"),
    ),
    "mail421": (
        at("MAIL", "421 4.3.2 Down", drop=True),
        *("DEFERRED", "deferred", "421 4.3.2 Down", 421, "MAIL"),
    ),
    "rcpt421": (
        at("RCPT", "421 4.3.2 Down", drop=True),
        *("DEFERRED", "deferred", "421 4.3.2 Down", 421, "RCPT"),
    ),
    "greet5": (
        at("connect", "554 5.7.1 Blocked", drop=True),
        *("DEFERRED", "deferred", "554 5.7.1 Blocked", 554, "greeting"),
    ),
    "greet4": (
        at("connect", "421 4.7.0 Busy", drop=True),
        *("DEFERRED", "deferred", "421 4.7.0 Busy", 421, "greeting"),
    ),
    "ehlo4": (at("EHLO", "421 4.7.0 Busy"), "DEFERRED", "deferred", "421 4.7.0", 421, "EHLO"),
    "helo": (at("EHLO", "502 5.5.1 What?"), None, "delivered", "", 250, "end of data"),
    "noise": (at("MAIL", "hello"), "DEFERRED", "deferred", "not an SMTP reply", 0, "MAIL"),
    "drop": (at("DATA", drop=True), "DEFERRED", "deferred", "connection closed", 0, "DATA"),
    "dropdot": (
        at("end of data", drop=True),
        *("DEFERRED", "unknown", "connection closed", 0, "end of data"),
    ),
    "hang": (hanging_at("MAIL"), "DEFERRED", "deferred", "timeout, no reply to MAIL", 0, "MAIL"),
    "hangdot": (
        hanging_at("end of data"),
        *("DEFERRED", "unknown", "timeout, no reply to end of data", 0, "end of data"),
    ),
}


@pytest.mark.slow
@both
def test_every_answer_has_its_outcome(system: System, extensions: tuple[str, ...]) -> None:
    hops = {name: system.hop(case[0], extensions) for name, case in CASES.items()}
    routes = {f"{name}.example": hop.target for name, hop in hops.items()}
    # the impatient worker has only the hops that hang, so that no other is too slow for it
    for where, timeouts in {
        "domain LIKE 'hang%'": {"command": "3s", "final": "3s"},
        "domain NOT LIKE 'hang%'": {},
    }.items():
        system.queued(
            environment={"database": {"where": where}},
            routes=routes,
            retry=LATER,
            delivery={"timeouts": timeouts},
        )
    for name in CASES:
        system.enqueue(f"x@{name}.example")
    system.wait_queue(lambda rows: all(row["status"] in ("HOLD", "DEFERRED") for row in rows))
    rows = system.rows()
    for name, (_, status, event, reply, code, command) in CASES.items():
        recipient = f"x@{name}.example"
        (attempt,) = system.attempts(recipient)
        found = (attempt["event"], attempt["code"], attempt["command"])
        assert found == (event, code, command), (name, attempt)
        assert (attempt["host"], attempt["address"]) == (hops[name].target, "127.0.0.1"), name
        if status is None:
            assert recipient not in rows
            continue
        row = rows[recipient]
        assert (row["status"], row["attempts"]) == (status, 1), name
        assert row["last_reply"].startswith(reply), (name, row["last_reply"])
        assert unleased(row), name


@both
def test_on_failed_and_once_decide_what_becomes_of_the_row(
    system: System, extensions: tuple[str, ...]
) -> None:
    """Removed or held; an unknown outcome is final with `once`, and no other one is."""
    names = ("dot5", "mail5", "dot3", "dropdot", "dot4", "drop", "helo")
    hops = {name: system.hop(CASES[name][0], extensions) for name in names}
    routes = {f"{name}.example": hop.target for name, hop in hops.items()}
    system.queued(routes=routes, retry=LATER)
    policies: dict[str, dict[str, Any]] = {
        "plain": {},
        "once": {"once": True},
        "remove": {"on_failed": "remove"},
        "both": {"once": True, "on_failed": "remove"},
    }
    for name in names:
        for policy, columns in policies.items():
            system.enqueue(f"{policy}@{name}.example", **columns)
    system.wait_queue(lambda rows: all(row["status"] in ("HOLD", "DEFERRED") for row in rows))
    rows = system.rows()
    for name in names:
        _, plain, event, reply, _, _ = CASES[name]
        for policy, columns in policies.items():
            recipient = f"{policy}@{name}.example"
            final = plain == "HOLD" or (event == "unknown" and "once" in columns)
            expected = (None if "on_failed" in columns else "HOLD") if final else plain
            assert system.events(recipient) == [event]
            assert rows.get(recipient, {}).get("status") == expected, recipient
            if expected:
                row = rows[recipient]
                assert row["last_reply"].startswith(reply)
                assert unleased(row)
            if expected == "HOLD":
                why = "undeliverable" if event == "failed" else "outcome unknown: a release may"
                assert row["hold_reason"].startswith(why)
                assert row["held_by"].startswith("deliver@")
    assert {row["message_id"] for row in rows.values()} == {
        message["id"] for message in system.ask("SELECT id FROM messages")
    }


def unleased(row: Row) -> bool:
    return all(row[f"lease_{part}"] is None for part in ("owner", "since", "until", "token"))


@both
def test_recipients_of_one_transaction_are_told_apart(
    system: System, extensions: tuple[str, ...]
) -> None:
    def script(point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "RCPT" and "bad@" in line:
            return Do(line="550 5.1.1 No such user")
        if point == "RCPT" and "later@" in line:
            return Do(line="451 4.2.1 Mailbox busy")
        return None

    hop = system.hop(script, extensions)
    system.queued(hop, retry=LATER)
    people = [f"{who}@hop.example" for who in ("bad", "good", "later", "fine")]
    message = system.enqueue(*people)
    rows = system.wait_status(bad="HOLD", later="DEFERRED")
    (transaction,) = hop.transactions
    assert transaction.asked == people
    assert transaction.recipients == ["good@hop.example", "fine@hop.example"]
    assert rows["bad"]["last_reply"] == "550 5.1.1 No such user"
    assert rows["later"]["last_reply"] == "451 4.2.1 Mailbox busy"
    told = {
        a["recipient"].partition("@")[0]: (a["event"], a["code"], a["enhanced"], a["command"])
        for a in system.attempts()
    }
    assert told == {
        "bad": ("failed", 550, "5.1.1", "RCPT"),
        "later": ("deferred", 451, "4.2.1", "RCPT"),
        "good": ("delivered", 250, "2.0.0", "end of data"),
        "fine": ("delivered", 250, "2.0.0", "end of data"),
    }
    assert {(a["host"], a["message_id"]) for a in system.attempts()} == {(hop.target, message)}
    assert [row["id"] for row in system.ask("SELECT id FROM messages")] == [message]


@both
def test_nobody_accepted_and_the_connection_goes_on(
    system: System, extensions: tuple[str, ...]
) -> None:
    hop = system.hop(at("RCPT", "550 5.1.1 No such user", times=2), extensions)
    system.queued(hop, delivery={"connections": 1, "idle": "60s"})
    system.enqueue("one@hop.example", "two@hop.example")
    system.wait_status(one="HOLD", two="HOLD")
    system.enqueue("three@hop.example")
    system.wait_status(one="HOLD", two="HOLD")
    hop.wait_kept(1)
    assert hop.deliveries() == {"three@hop.example": 1}
    assert hop.connections == 1


def test_too_large_for_the_next_hop(system: System) -> None:
    hop = system.hop(extensions=("PIPELINING", "SIZE 2000"))
    system.queued(hop)
    system.enqueue("big@hop.example", content=b"Subject: x\r\n\r\n" + b"x\r\n" * 1000)
    rows = system.wait_status(big="HOLD")
    assert rows["big"]["last_reply"].startswith("5.3.4 message of 30")
    system.enqueue("small@hop.example")
    hop.wait_kept(1)
    system.wait_status(big="HOLD")
    assert [t.asked for t in hop.transactions] == [["small@hop.example"]]
    assert system.events("big@hop.example") == ["failed"]


def test_what_the_next_hop_does_not_know_is_not_used(system: System) -> None:
    """Without 8BITMIME 8-bit content goes unchanged, because rejecting it has no use."""
    content = b"Subject: x\r\n\r\nf\xc3\xbcr\r\n"
    plain, able = system.hop(extensions=()), system.hop()
    system.queued(routes={"plain.example": plain.target, "able.example": able.target})
    system.enqueue("x@plain.example", "x@able.example", content=content)
    system.wait_empty()
    assert "BODY" not in plain.kept[0].mail
    assert "SIZE" not in plain.kept[0].mail
    assert "BODY=8BITMIME" in able.kept[0].mail
    assert "SIZE=" in able.kept[0].mail
    for hop in (plain, able):
        assert (hop.kept[0].content or b"").endswith(content)


def test_connection_lost_after_the_dot_is_tried_again(system: System) -> None:
    hop = system.hop(at("end of data", drop=True, times=1))
    system.queued(hop)
    system.enqueue("x@hop.example", "y@hop.example")
    hop.wait_kept(2)
    system.wait_empty()
    assert hop.deliveries() == {"x@hop.example": 2, "y@hop.example": 2}
    for recipient in hop.deliveries():
        assert system.events(recipient) == ["unknown", "delivered"]
    unknown = system.attempts("x@hop.example")[0]
    assert (unknown["host"], unknown["command"]) == (hop.target, "end of data")


@pytest.mark.parametrize(
    "idle", [Do(drop=True), Do(line="421 4.4.2 Idle", drop=True), Do(line="421 4.4.2 Idle")],
    ids=["close", "421 and close", "421"],
)  # fmt: skip
def test_connection_closed_while_idle_wastes_no_attempt(system: System, idle: Do) -> None:
    hop = system.hop(lambda point, line, transaction: idle if point == "idle" else None)
    system.queued(hop)
    for number in range(3):
        system.enqueue(f"x{number}@hop.example")
        system.wait_empty()
    assert [len(t.recipients) for t in hop.kept] == [1, 1, 1]
    assert [attempt["event"] for attempt in system.attempts()] == ["delivered"] * 3


def test_too_old_is_held(system: System) -> None:
    hop = system.hop(at("RCPT", "450 4.2.0 Later"))
    system.queued(hop, retry={"intervals": ["1s"], "expire": "1h"})
    system.enqueue("x@hop.example")
    system.wait_status(x="DEFERRED")
    system.ask("UPDATE queue SET ts = ts - interval '1h'")
    rows = system.wait_status(x="HOLD")
    assert rows["x"]["last_reply"].startswith("450 4.2.0 Later (given up")
    events = system.events("x@hop.example")
    assert events[-1] == "failed"
    assert set(events[:-1]) == {"deferred"}


def test_mail_whose_every_attempt_was_cut_after_the_dot_ends_as_unknown(system: System) -> None:
    """The next hop has it: a failure, or its DSN, would say that it has not."""
    hop = system.hop(at("end of data", drop=True))
    system.queued(hop, retry={"intervals": ["100ms"], "attempts": 2})
    system.enqueue("held@hop.example", on_failed="bounce")
    system.enqueue("gone@hop.example", on_failed="remove")
    row = system.wait_status(held="HOLD")["held"]
    assert row["report_kind"] == "unknown"
    assert "given up after 2 attempts" in row["last_reply"]
    for person in ("held@hop.example", "gone@hop.example"):
        assert system.events(person) == ["unknown"] * 2
    states = system.ask("SELECT DISTINCT state FROM message_status")
    assert [each["state"] for each in states] == ["unknown"]


def test_a_row_without_a_message_is_held_and_stops_no_other(system: System) -> None:
    hop = system.hop()
    system.ask(
        "INSERT INTO queue (message_id, sender, sender_domain, recipient, domain)"
        " VALUES (9000000, '', '', 'x@hop.example', 'hop.example')"
    )
    system.enqueue("y@hop.example")
    system.queued(hop)
    rows = system.wait_status(x="HOLD")
    assert rows["x"]["last_reply"] == "5.3.0 its message is not in the database"
    assert system.events("x@hop.example") == ["failed"]
    assert system.events("y@hop.example") == ["delivered"]
