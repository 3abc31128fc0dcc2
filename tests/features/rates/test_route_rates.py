"""Routes with a rate: never above it, and no other mail waits for it."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.features.rates.mail_clock import MailClock, shaping
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
        assert 100 <= sum(began <= at < began + 10 for at in clock.times[sender]) <= 200
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
    assert 11 * 1.2 <= times[-1] - times[0] <= 11 * 1.2 / 0.5
    system.stop()
    rows = system.queue()
    assert len(rows) + len(times) == 300
    assert {row["attempts"] for row in rows} == {0}


def test_mail_with_two_rates_has_the_slower_one(
    system: System, db: psycopg.Connection, tmp_path: Path, clock: MailClock
) -> None:
    """Two credentials share the rate of a route, and two processes share all three budgets."""
    hop = system.hop(clock)
    file = shaping(tmp_path, {"name": "all", "to": hop.target, "rate": "60/s", "per": "route"})
    senders = {"credential:x": "x@a.example", "credential:y": "y@a.example"}
    for key, sender in senders.items():
        db.execute("SELECT budget_set(%s, 20)", (key,))
        recipients = (f"x{n}@b{n % 9}.example" for n in range(400))
        system.enqueue(*recipients, sender=sender, metadata=f'{{"_budget": "{key}"}}')
    for _ in range(2):
        system.queued(shaping=file)
    x, y = (clock.times[sender] for sender in senders.values())
    until(lambda: min(len(x), len(y)) >= 40, 30)
    began, so_far = time.monotonic(), (len(x), len(y))
    until(lambda: time.monotonic() > began + 5, 30)
    for sender, before in zip(senders.values(), so_far, strict=True):
        assert 50 <= len(clock.times[sender]) - before <= 105
        assert clock.most(sender) <= 20
    system.stop()
    assert not system.ask("SELECT FROM attempts WHERE event <> 'delivered'")


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


def test_workers_that_stop_and_restart_never_exceed_it(
    system: System, tmp_path: Path, clock: MailClock
) -> None:
    """Of three processes one is stopped for 5 s, one killed and one replaced."""
    hop = system.hop(clock)
    file = shaping(tmp_path, {"name": "all", "to": hop.target, "rate": "50/s", "per": "route"})
    system.enqueue(*(f"x{n}@b{n % 30}.example" for n in range(1200)), sender="x@a.example")
    stopped, killed, replaced = (system.queued(shaping=file) for _ in range(3))
    times = clock.times["x@a.example"]

    def later(seconds: float) -> None:
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end)

    until(lambda: len(times) > 60)
    stopped.signal(signal.SIGSTOP)
    later(2)
    killed.process.kill()
    replaced.stop()
    system.queued(shaping=file)
    later(3)
    stopped.signal(signal.SIGCONT)
    later(4)
    # a transaction that was open when the process stopped may come late
    assert clock.most("x@a.example") <= 51


def test_a_rate_holds_no_connection_that_other_mail_needs(
    system: System, db: psycopg.Connection, clock: MailClock
) -> None:
    """More mail of a credential waits than the destination may have connections."""
    hop = system.hop(clock)
    db.execute("SELECT budget_set('credential:x', 2)")
    system.enqueue(*(f"x{n}@b.example" for n in range(40)), sender="x@a.example")
    db.execute("""UPDATE queue SET once = true, metadata = '{"_budget": "credential:x"}'""")
    system.queued(hop, delivery={"connections": 2, "start": 1})
    until(lambda: len(clock.times["x@a.example"]) >= 2)
    for n in range(20):
        before = time.monotonic()
        system.enqueue(f"good{n}@b.example", sender="x@c.example")
        until(partial(clock.has, "x@c.example", n + 1))
        assert clock.times["x@c.example"][-1] - before < 1
    assert clock.most("x@a.example") <= 2
    assert hop.open <= 2
