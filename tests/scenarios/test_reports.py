"""Rows that fail are reported to their senders by one DSN, by the real daemons."""

from __future__ import annotations

import email
from email.message import Message

from tests.support.nexthop import Do, NextHop, Transaction
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
    system.ask("UPDATE queue SET status = 'DELETE'")
    system.wait_empty()
    rows = system.ask("SELECT * FROM reports ORDER BY row_id")
    assert [(r["recipient"], r["kind"], r["sent_to"], r["class"]) for r in rows] == [
        (name, "failed", "sender@example.org", rows[0]["class"])
        for name in ("bad1@x.example", "bad2@x.example")
    ]
    assert {row["message_id"] for row in rows} == {first}
    assert system.events("sender@example.org") == ["delivered"]
