"""Routes with a rate: never above it, and no other mail waits for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.rates.mail_clock import MailClock, shaping
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def test_a_rate_per_sender_domain_stops_no_other_mail(
    system: System, tmp_path: Path, clock: MailClock
) -> None:
    """Two senders have a backlog of more than all slots, for the same destination."""
    hop = system.hop(clock)
    route = {"name": "slow", "sender_domain": "*.news.example", "to": hop.target}
    file = shaping(tmp_path, {**route, "rate": "20/s", "per": "sender_domain"})
    for sender in ("x@a.news.example", "x@b.news.example"):
        system.enqueue(*(f"x{n}@b.example" for n in range(600)), sender=sender)
    system.queued(hop, shaping=file)
    until(lambda: clock.times["x@a.news.example"])
    began = time.monotonic()
    for n in range(20):
        system.enqueue(f"good{n}@b.example", sender="x@c.example")
    until(lambda: len(clock.times["x@c.example"]) == 20)
    assert clock.times["x@c.example"][-1] - began < 2
    until(lambda: time.monotonic() > began + 10, 30)
    for sender in ("x@a.news.example", "x@b.news.example"):
        assert clock.most(sender) <= 20
        assert 180 <= sum(began <= at < began + 10 for at in clock.times[sender]) <= 200
    system.stop()
    assert not system.ask("SELECT FROM attempts WHERE event <> 'delivered'")


def test_a_slow_rate_loses_no_time(system: System, tmp_path: Path, clock: MailClock) -> None:
    """A mail each second or so: the rows wait in workers, the others are left out of claims."""
    hop = system.hop(clock)
    file = shaping(tmp_path, {"name": "slow", "to": hop.target, "rate": "50/min"})
    system.enqueue(*(f"x{n}@b.example" for n in range(300)), sender="x@a.example")
    for _ in range(3):
        system.queued(shaping=file)
    until(lambda: len(clock.times["x@a.example"]) == 12, 30)
    times = clock.times["x@a.example"]
    assert 11 * 1.2 <= times[-1] - times[0] <= 11 * 1.2 / 0.9
    system.stop()
    rows = system.queue()
    assert len(rows) == 288
    assert {row["attempts"] for row in rows} == {0}


def test_a_burst_goes_at_once_after_a_pause(
    system: System, tmp_path: Path, clock: MailClock
) -> None:
    hop = system.hop(clock)
    route = {"name": "slow", "to": hop.target, "rate": "1/s", "burst": 10}
    system.enqueue(*(f"x{n}@b.example" for n in range(20)), sender="x@a.example")
    system.queued(shaping=shaping(tmp_path, route))
    until(lambda: len(clock.times["x@a.example"]) >= 13, 15)
    times = clock.times["x@a.example"]
    assert times[9] - times[0] < 1
    assert times[12] - times[9] > 2.9
    system.stop()
