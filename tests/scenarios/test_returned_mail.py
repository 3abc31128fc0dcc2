"""VERP: mail leaves with the address of its row, and comes back to the log."""

from __future__ import annotations

import re
import smtplib
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.scenarios.test_bounce_command import queuectl
from tests.scenarios.test_rewriting import shaping
from tests.support.nexthop import NextHop
from tests.support.system import Row, System
from tests.support.waiting import until

VERP = "bounce+{id}-{hash}@bounces.example"
SHAPES = Path(__file__).parents[1] / "queued" / "returned"


def configuration(folder: Path, hop: NextHop, **verp: Any) -> str:
    return shaping(
        folder,
        verp={"keys": ["verp.key"], **verp},
        routes=[
            {"domain": "b.example", "to": hop.target, "rewrite": {"sender": VERP}},
            {"to": hop.target},
        ],
    )


def shape(name: str) -> bytes:
    """A bounce as other hosts write it; its first line is for another test."""
    return (SHAPES / f"{name}.eml").read_bytes().partition(b"\n")[2].replace(b"\n", b"\r\n")


def last(system: System, recipient: str) -> Row:
    """The attempt in the log that the view has for the recipient."""
    return system.ask(
        "SELECT * FROM attempt_history WHERE recipient = %s ORDER BY ended_at DESC LIMIT 1",
        recipient,
    )[0]


def test_round_trip(system: System, tmp_path: Path) -> None:
    """By smtpd, to two recipients; one of both comes back."""
    hop = system.hop()
    queued = system.queued(shaping=configuration(tmp_path, hop))
    smtpd = system.smtpd(relay={"domains": ["b.example", "bounces.example"]})
    with smtplib.SMTP("127.0.0.1", smtpd.port) as client:
        client.sendmail(
            "news@a.example", ["joe@b.example", "ann@b.example"], "Subject: News\n\nx\n"
        )
    hop.wait_kept(2)
    system.wait_empty()
    senders = {each.recipients[0]: each.sender for each in hop.transactions}
    assert len(set(senders.values())) == 2, "one envelope per row"
    assert all(re.fullmatch(r"bounce\+[0-9a-v]+-[0-9a-v]+-[0-9a-v]{16}@bounces\.example", each)
               for each in senders.values())  # fmt: skip
    with smtplib.SMTP("127.0.0.1", smtpd.port) as client:
        client.sendmail("", [senders["joe@b.example"].upper()], shape("postfix"))
    system.wait_queue(lambda rows: not rows and last(system, "joe@b.example")["returned_at"])
    joe, ann = last(system, "joe@b.example"), last(system, "ann@b.example")
    assert (joe["event"], joe["code"], joe["class"]) == ("delivered", 250, "unknown_user")
    assert joe["returned"].startswith("550 5.1.1 <joe@b.example>: Recipient address rejected")
    assert (ann["class"], ann["returned"], ann["returned_at"]) == (None, None, None)
    for command in ("explain", "show"):
        shown = queuectl(queued, command, str(joe["message_id"]))
        came, line = shown.partition("\ncame back\n")[2].splitlines()[:2]
        assert came.split() == ["AT", "RECIPIENT", "CLASS", "TEXT"]
        assert line.split()[2:6] == ["joe@b.example", "unknown_user", "550", "5.1.1"]
    taken = [each for each in system.attempts() if each["sender"] == ""]
    words = f"2.0.0 recorded for message {joe['message_id']}: unknown_user"
    assert [(each["event"], each["reply"]) for each in taken] == [("delivered", words)]
    system.enqueue(senders["joe@b.example"], content=shape("exim"), sender="")
    system.wait_queue(lambda rows: not rows and len(system.attempts()) == 4)
    assert last(system, "joe@b.example") == joe, "the first failure counts"
    assert len(hop.transactions) == 2
    queued.stop()


def sent(system: System, hop: NextHop) -> str:
    """Deliver a message, and return its reverse-path."""
    count = len(hop.transactions)
    system.enqueue("joe@b.example", sender="news@a.example")
    hop.wait_kept(count + 1)
    system.wait_queue(lambda rows: not rows)
    return hop.transactions[-1].sender


def test_answers_and_delays_are_no_failures(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop))
    for name in ("holidays", "postfix-delayed", "person", "success"):
        address = sent(system, hop)
        system.enqueue(address, content=shape(name), sender="joe@b.example" * (name == "person"))
        system.wait_queue(lambda rows: not rows)
        (entry,) = system.attempts(address)
        assert entry["reply"].startswith("2.0.0 no failure of message ")
        joe = last(system, "joe@b.example")
        assert (joe["class"], joe["returned_at"]) == (None, None)


def test_bad_addresses_leave_nothing(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop))
    good = sent(system, hop)
    digit = good[good.index("@") - 1]
    bad = good.replace(f"{digit}@", f"{'0' if digit != '0' else '1'}@")
    system.enqueue(bad, content=shape("postfix"), sender="")
    system.wait_queue(lambda rows: not rows and system.attempts(bad))
    (entry,) = system.attempts(bad)
    assert (entry["event"], entry["reply"]) == ("failed", "5.7.1 the hash of the address is wrong")
    assert last(system, "joe@b.example")["returned_at"] is None
    assert system.ask("SELECT count(*) FROM messages") == [{"count": 0}]
    system.enqueue("bounce+x@bounces.example", sender="")
    hop.wait_kept(2)
    assert hop.transactions[-1].recipients == ["bounce+x@bounces.example"], "a usual address"


def test_mail_goes_on_to_the_sender_or_an_address(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    queued = system.queued(shaping=configuration(tmp_path, hop, forward="sender"))
    address = sent(system, hop)
    system.enqueue(address, content=shape("qmail"), sender="")
    hop.wait_kept(2)
    assert hop.transactions[-1].recipients == ["news@a.example"]
    assert last(system, "joe@b.example")["class"] == "unknown_user"
    configuration(tmp_path, hop, forward="lists@c.example")
    queued.reload(queued.config)
    large = shape("holidays") + b"x\r\n" * 100_000
    system.enqueue(address, content=large, sender="")
    hop.wait_kept(3)
    system.wait_queue(lambda rows: not rows)
    assert hop.transactions[-1].recipients == ["lists@c.example"]
    assert hop.transactions[-1].content == b"Received: by test\r\n" + large


def test_addresses_that_lead_to_each_other(system: System, tmp_path: Path) -> None:
    """The sender of one is the next one; a loop, by SQL, ends."""
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop, forward="sender"))
    first = sent(system, hop)
    system.enqueue("ann@b.example", sender=first)
    second = hop.wait_kept(2)[1].sender
    system.wait_queue(lambda rows: not rows)
    system.enqueue(second, content=shape("qmail"), sender="")
    hop.wait_kept(3)
    assert hop.transactions[-1].recipients == ["news@a.example"]
    system.wait_queue(lambda rows: not rows)
    system.ask("UPDATE attempts SET sender = %s WHERE sender = 'news@a.example'", second)
    system.enqueue(second, content=shape("qmail"), sender="", on_failed="bounce")
    system.wait_queue(lambda rows: not rows)
    (found,) = system.ask("SELECT event, reply FROM attempts WHERE event <> 'delivered'")
    assert found == {"event": "failed", "reply": "5.4.6 its VERP addresses are a loop"}
    assert len(hop.kept) == 3


@pytest.mark.slow
def test_locked_attempt_stops_neither_other_returned_mail_nor_large_mail(
    system: System, tmp_path: Path
) -> None:
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop), retry={"intervals": ["100ms"]})
    addresses = [sent(system, hop), sent(system, hop)]
    locked, free = system.ask("SELECT row_id FROM attempts ORDER BY row_id")
    noted = "SELECT row_id FROM attempts WHERE class IS NOT NULL AND event = 'delivered'"
    with psycopg.connect(system.uri) as db:
        db.execute("SELECT FROM attempts WHERE row_id = %s FOR UPDATE", [locked["row_id"]])
        for address in (addresses[0], *addresses):
            system.enqueue(address, content=shape("qmail"), sender="")
        large = b"Subject: large\r\n\r\n" + b"x\r\n" * 100_000
        system.enqueue("ann@c.example", content=large)
        assert hop.wait_kept(3)[2].recipients == ["ann@c.example"]
        until(lambda: system.ask(noted) == [free])
        deferred = "SELECT row_id FROM attempts WHERE event = 'deferred' AND reply ~ 'lock timeout'"
        until(lambda: system.ask(deferred))
    system.wait_queue(lambda rows: not rows)
    assert len(system.ask(noted)) == 2


def test_log_without_the_attempt(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop), retry={"intervals": ["100ms"]})
    address = sent(system, hop)
    system.ask("DELETE FROM attempts")
    system.enqueue(address, content=shape("postfix"), sender="")
    system.wait_queue(lambda rows: not rows and len(system.attempts(address)) == 2)
    first, second = system.attempts(address)
    assert (first["event"], second["event"]) == ("deferred", "delivered")
    assert second["reply"].startswith("2.0.0 the log has no delivery of message ")


def test_null_sender_has_no_verp(system: System, tmp_path: Path) -> None:
    hop = system.hop()
    system.queued(shaping=configuration(tmp_path, hop))
    system.enqueue("joe@b.example", "ann@b.example", sender="")
    hop.wait_kept(1)
    system.wait_empty()
    assert {each.sender for each in hop.transactions} == {""}
