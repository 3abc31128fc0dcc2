"""Next hops that are away, or that hang."""

from __future__ import annotations

import time

import pytest

from tests.support.nexthop import hanging_at
from tests.support.submit import post
from tests.support.system import System
from tests.support.waiting import SLACK, until

MAIL = b"Subject: x\r\n\r\nx\r\n"


@pytest.mark.slow
def test_mail_waits_and_goes_out_when_the_next_hop_is_back(system: System) -> None:
    hop = system.hop()
    hop.stop()
    smtpd = system.smtpd()
    system.queued(hop)
    people = [f"x{n}@hop.example" for n in range(20)]
    for person in people:
        post(smtpd.port, "a@example.org", [person], MAIL)
    rows = system.wait_queue(
        lambda rows: len(rows) == 20 and all(row["status"] == "DEFERRED" for row in rows)
    )
    for row in rows:
        assert row["last_reply"].startswith(f"4.4.1 connect to {hop.target}: ")
        assert "refused" in row["last_reply"]
    hop.start()
    back = time.monotonic()
    hop.wait_kept(20)
    assert hop.last_kept - back < 1 + SLACK  # the interval, and what the machine may take
    system.wait_empty()
    assert hop.deliveries() == dict.fromkeys(people, 1)
    for person in people:
        *before, last = system.events(person)
        assert last == "delivered"
        assert before
        assert set(before) == {"deferred"}


def test_hanging_next_hops_do_not_stop_other_mail(system: System) -> None:
    """Each with more mail than a worker may have in flight, and all of it older."""
    bad = {
        f"bad{n}.example": system.hop(hanging_at(point))
        for n, point in enumerate(["connect", "EHLO", "MAIL", "end of data"])
    }
    good = system.hop()
    for domain in bad:
        system.enqueue(*(f"x{n}@{domain}" for n in range(300)))
    queued = system.queued(
        routes={"good.example": good.target, **{d: hop.target for d, hop in bad.items()}},
        process={"drain": "0s"},
    )
    for hop in bad.values():
        hop.wait(lambda hop=hop: hop.open)  # type: ignore[misc]
    for n in range(30):
        system.enqueue(f"x{n}@good.example")
    good.wait_kept(30)
    system.wait_queue(lambda rows: all(row["domain"] in bad for row in rows))  # settled as well
    queued.stop()
    states = system.ask("SELECT domain, status, count(*) FROM queue GROUP BY 1, 2")
    assert {(row["domain"], row["status"]): row["count"] for row in states} == {
        **{(domain, "QUEUED"): 300 for domain in list(bad)[:3]},
        ("bad3.example", "QUEUED"): 300 - len(bad_dots(system)),
        ("bad3.example", "DEFERRED"): len(bad_dots(system)),
    }


def bad_dots(system: System) -> list[str]:
    """Recipients whose attempt was cut off after the dot."""
    return [a["recipient"] for a in system.attempts() if a["event"] == "unknown"]


@pytest.mark.slow
def test_relays_that_never_greet_hold_few_slots(system: System) -> None:
    """All of their mail is older, and each has more of it than a worker has slots."""
    dead = [system.hop(hanging_at("connect")) for _ in range(12)]
    good = system.hop()
    for number in range(len(dead)):
        system.enqueue(*(f"x{n}@{'abc'[n % 3]}.dead{number}.example" for n in range(600)))
    queued = system.queued(
        routes={
            "good.example": good.target,
            **{f"*.dead{number}.example": hop.target for number, hop in enumerate(dead)},
        },
        process={"drain": "0s"},
    )
    for hop in dead:
        hop.wait(lambda hop=hop: hop.open)  # type: ignore[misc]
    system.enqueue(*(f"x{n}@good.example" for n in range(1000)))
    good.wait(lambda: good.deliveries().total() == 1000)
    assert not [each for each in system.attempts() if each["event"] != "delivered"]
    leased = "SELECT count(*) FROM queue WHERE lease_until IS NOT NULL"
    until(lambda: system.ask(leased)[0]["count"] <= 5 * len(dead), describe="slots")
    queued.stop()
