"""The rate of a credential at the next hop: never above it, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import time
from bisect import bisect_left

import psycopg
import pytest

from tests.campaigns.campaigns import books, make_campaign
from tests.support.nexthop import Do, Transaction
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow


class Clock:
    """A next hop's script that notes the time of each MAIL."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if line.upper().startswith("MAIL"):
            self.times.append(time.monotonic())
        return None

    def most(self, seconds: float = 0.95) -> int:
        """Return the most mails in any window: a second, less the jitter of this program."""
        times = sorted(self.times)
        return max(bisect_left(times, at + seconds) - n for n, at in enumerate(times))


@pytest.mark.parametrize(
    ("rate", "processes", "share"), [(50, 1, 0.9), (50, 3, 0.9), (400, 2, 0.8)]
)
def test_no_second_has_more_than_the_rate(
    system: System, db: psycopg.Connection, rate: int, processes: int, share: float
) -> None:
    clock = Clock()
    hop = system.hop(clock)
    for _ in range(processes):
        system.queued(hop)
    campaign = make_campaign(db, rate * 10)
    db.execute("SELECT campaign_start(%s, %s, 2)", (campaign, rate))
    until(lambda: len(clock.times) == rate * 10, 60)
    assert clock.most() <= rate
    whole = clock.times[-1] - clock.times[rate]
    assert rate * 9 / whole >= share * rate
    until(lambda: books(db, campaign) == {"sent": rate * 10})
    system.stop()


def test_a_worker_that_was_stopped_makes_no_burst(system: System, db: psycopg.Connection) -> None:
    clock = Clock()
    hop = system.hop(clock)
    workers = [system.queued(hop) for _ in range(2)]
    campaign = make_campaign(db, 400)
    db.execute("SELECT campaign_start(%s, 50)", (campaign,))
    until(lambda: len(clock.times) > 50)
    os.kill(workers[0].pid, signal.SIGSTOP)
    before = len(clock.times)
    until(lambda: len(clock.times) > before + 100, 30)
    os.kill(workers[0].pid, signal.SIGCONT)
    until(lambda: len(clock.times) >= 400, 60)
    # a transaction that was open at the stop may come late, one for each connection
    assert clock.most() <= 50 + 5
    until(lambda: books(db, campaign).get("sent", 0) + books(db, campaign).get("unknown", 0) == 400)
    system.stop()
