"""Next hops that break the protocol, and the outcomes of their rows."""

from __future__ import annotations

import unicodedata

import pytest

from tests.support.nexthop import EXTENSIONS, at
from tests.support.system import System

LATER = {"intervals": ["1h"]}
LARGE = b"Subject: x\r\n\r\n" + b"x" * 78 + b"\r\n"
EARLY = "250 2.0.0 Ok"


def test_reply_before_the_final_dot_delivers_nothing(system: System) -> None:
    """Such a hop then drops; the row has to be there for the next attempt."""
    hops = {
        "small.example": system.hop(at("DATA", f"354 Go on\r\n{EARLY}", drop=True, times=1)),
        "large.example": system.hop(at("content", EARLY, drop=True, times=1)),
    }
    routes = {domain: hop.target for domain, hop in hops.items()}
    daemon = system.queued(routes=routes, retry=LATER)
    contents = {"small.example": LARGE, "large.example": LARGE + (b"y" * 98 + b"\r\n") * 40_000}
    for domain, content in contents.items():
        system.enqueue(f"x@{domain}", f"y@{domain}", content=content)
    rows = system.wait_queue(lambda rows: {row["status"] for row in rows} == {"DEFERRED"})
    assert len(rows) == 4
    assert {row["last_reply"] for row in rows} == {f"reply without a command: {EARLY}"}
    assert {attempt["event"] for attempt in system.attempts()} == {"deferred"}
    assert [hop.kept for hop in hops.values()] == [[], []]
    daemon.stop()
    system.ask("UPDATE queue SET next_attempt = now()")
    system.queued(routes=routes)
    system.wait_empty()
    for domain, hop in hops.items():
        assert hop.deliveries() == {f"x@{domain}": 1, f"y@{domain}": 1}
        assert (hop.kept[0].content or b"").endswith(contents[domain])


@pytest.mark.parametrize("size", ["²", "9" * 4000, ""])
def test_odd_extensions_kill_nothing(system: System, size: str) -> None:
    hop = system.hop(extensions=(*EXTENSIONS[:-1], f"SIZE {size}"))
    system.queued(hop)
    system.enqueue("x@hop.example")
    system.wait_empty()
    assert hop.deliveries() == {"x@hop.example": 1}


def test_what_a_hop_says_is_stored_short_and_printable(system: System) -> None:
    evil = "550-5.7.1 \x1b[2J\x9b31m \u202e\u2028 \r\n" * 60 + "550 5.7.1 " + "é" * 1900
    hop = system.hop(at("RCPT", evil))
    system.queued(hop)
    system.enqueue("x@hop.example")
    row = system.wait_status(x="HOLD")["x"]
    (attempt,) = system.attempts()
    for text in (row["last_reply"], attempt["reply"]):
        assert "5.7.1 \ufffd[2J" in text
        assert 1000 < len(text.encode()) <= 1024
        assert not {unicodedata.category(c) for c in text} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_rows_of_one_message_with_other_senders_have_other_transactions(system: System) -> None:
    hop = system.hop()
    people = [f"x{n}@hop.example" for n in range(4)]
    system.enqueue(*people)
    system.ask("UPDATE queue SET sender = 'bounce-' || recipient WHERE recipient < 'x2'")
    system.queued(hop)
    system.wait_empty()
    assert {(t.sender, tuple(t.recipients)) for t in hop.kept} == {
        ("bounce-x0@hop.example", ("x0@hop.example",)),
        ("bounce-x1@hop.example", ("x1@hop.example",)),
        ("sender@example.org", ("x2@hop.example", "x3@hop.example")),
    }


def test_host_that_admits_few_connections_wastes_no_attempt(system: System) -> None:
    hop = system.hop()
    busy = at("connect", "421 4.7.0 Too many connections", drop=True)
    hop.script = lambda point, line, transaction: (
        busy(point, line, transaction) if hop.open > 3 else None
    )
    for n in range(20):
        system.enqueue(*(f"x{n}-{k}@hop.example" for k in range(10)))
    system.queued(hop, retry=LATER, delivery={"recipients": 1})
    system.wait_empty()
    assert set(hop.deliveries().values()) == {1}
    assert {attempt["event"] for attempt in system.attempts()} == {"delivered"}
    assert hop.connections <= 3 + 4
