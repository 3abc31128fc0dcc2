"""Rows that fail are reported to their senders by one DSN, by the real daemons."""

from __future__ import annotations

import email
from email.message import Message

import pytest

from tests.support.nexthop import EXTENSIONS, Do, NextHop, Transaction
from tests.support.system import System

FAST = {"gather": "1s"}


def refusing(point: str, line: str, transaction: Transaction | None) -> Do | None:
    """Refuse recipients whose address begins with bad, defer those that begin with slow."""
    if point == "RCPT" and "<bad" in line:
        return Do(line="550 5.1.1 No such user")
    if point == "RCPT" and "<slow" in line:
        return Do(line="450 4.2.1 Try later")
    return None


def dsns(hop: NextHop) -> list[Message]:
    """The DSNs that a hop has got, in order."""
    return [
        email.message_from_bytes(t.content)
        for t in hop.transactions
        if t.content is not None and t.sender == ""
    ]


def failed(dsn: Message) -> list[str]:
    """The addresses that a DSN names."""
    status = dsn.get_payload(1)
    assert isinstance(status, Message)
    fields = [
        block["Final-Recipient"] for block in status.get_payload() if isinstance(block, Message)
    ]
    return [field.partition(";")[2].strip() for field in fields if field]


@pytest.mark.slow
def test_failed_recipients_of_a_message_are_in_one_dsn(system: System) -> None:
    hop = system.hop(refusing)
    system.queued(hop, bounces=FAST)
    first = system.enqueue(
        "bad1@x.example", "good@x.example", "bad2@x.example", "slow@x.example", on_failed="bounce"
    )
    system.wait_queue(lambda rows: [row["status"] for row in rows] == ["DEFERRED"])
    hop.wait(lambda: len(dsns(hop)) == 1)
    (dsn,) = dsns(hop)
    assert failed(dsn) == ["bad1@x.example", "bad2@x.example"]
    assert dsn["To"] == "<sender@example.org>"
    (bad, *_) = system.ask("SELECT * FROM attempts WHERE event = 'failed' ORDER BY row_id")
    assert f"Final-Log-ID: {first}.{bad['row_id']}\n" in dsn.as_string().replace("\r\n", "\n")
    system.ask("UPDATE queue SET status = 'DELETE'")
    system.wait_empty()
    rows = system.ask("SELECT * FROM reports ORDER BY row_id")
    assert [(r["recipient"], r["kind"], r["sent_to"], r["class"]) for r in rows] == [
        (name, "failed", "sender@example.org", rows[0]["class"])
        for name in ("bad1@x.example", "bad2@x.example")
    ]
    assert {row["message_id"] for row in rows} == {first}
    assert system.events("sender@example.org") == ["delivered"]


def test_a_success_is_reported_if_the_next_hop_does_not_do_it(system: System) -> None:
    plain = system.hop()
    knowing = system.hop(extensions=(*EXTENSIONS, "DSN"))
    routes = {"knows.example": knowing.target, "*": plain.target}
    system.queued(routes=routes, bounces=FAST)
    for recipient in ("a@plain.example", "b@knows.example"):
        system.enqueue(recipient, on_failed="bounce", notify="SUCCESS,FAILURE")
    system.enqueue("c@plain.example", on_failed="bounce", notify="FAILURE")
    system.enqueue("d@plain.example", on_failed="hold", notify="SUCCESS")
    system.enqueue("e@plain.example", on_failed="bounce", notify="SUCCESS", sender="")
    plain.wait(lambda: len(dsns(plain)) == 2)  # one of them is the mail with the null reverse-path
    system.wait_empty()
    reports = system.ask("SELECT recipient, kind, sent_to FROM reports")
    assert [tuple(row.values()) for row in reports] == [
        ("a@plain.example", "relayed", "sender@example.org")
    ]


@pytest.mark.slow
def test_a_delay_is_reported_and_then_the_end(system: System) -> None:
    hop = system.hop(refusing)
    system.queued(
        hop, bounces={**FAST, "delay": ["1h"]}, retry={"intervals": ["200ms"], "expire": "1d"}
    )
    system.enqueue("slow1@x.example", "slow2@x.example", on_failed="bounce")
    system.enqueue("slow3@x.example", on_failed="bounce", notify="FAILURE")
    system.enqueue("slow4@x.example", on_failed="bounce", notify="NEVER")
    system.wait_queue(lambda rows: all(row["attempts"] for row in rows))
    system.ask("UPDATE queue SET ts = ts - interval '2 h' WHERE sender <> ''")
    hop.wait(lambda: len(dsns(hop)) == 1)
    notice = dsns(hop)[0].get_payload(1)
    assert isinstance(notice, Message)
    assert [str(part["Action"]) for part in notice.get_payload()[1:]] == ["delayed"] * 2  # type: ignore[index]
    system.ask("UPDATE queue SET ts = ts - interval '2 d' WHERE sender <> ''")
    hop.wait(lambda: len(dsns(hop)) == 3)
    system.wait_empty()
    rows = system.ask(
        "SELECT recipient, kind, report_id IS NOT NULL AS sent FROM reports ORDER BY at, row_id"
    )
    found = [(r["recipient"][:5], r["kind"], r["sent"]) for r in rows]
    assert sorted(found) == [
        ("slow1", "delayed", True), ("slow1", "failed", True),
        ("slow2", "delayed", True), ("slow2", "failed", True),
        ("slow3", "delayed", False), ("slow3", "failed", True),
        ("slow4", "delayed", False), ("slow4", "failed", False),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_delay_of_unknown_outcomes_is_reported(system: System) -> None:
    def lost(point: str, line: str, transaction: Transaction | None) -> Do | None:
        mail = transaction is not None and transaction.sender != ""
        return Do(drop=True) if point == "end of data" and mail else None

    hop = system.hop(lost)
    system.queued(hop, bounces={**FAST, "delay": ["1h"]}, retry={"intervals": ["200ms"]})
    system.enqueue("lost@x.example", on_failed="bounce")
    system.wait_queue(lambda rows: all(row["attempts"] for row in rows))
    system.ask("UPDATE queue SET ts = ts - interval '2 h' WHERE sender <> ''")
    hop.wait(lambda: any(t.sender == "" for t in hop.transactions))
    notice = system.ask("SELECT recipient, kind FROM reports")
    assert notice == [{"recipient": "lost@x.example", "kind": "delayed"}]
    assert set(system.events("lost@x.example")) == {"unknown"}
