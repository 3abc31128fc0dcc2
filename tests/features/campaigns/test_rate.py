"""The rate of a credential at the next hop: never above it, whatever becomes of the workers."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.features.campaigns.campaigns import books, make_campaign, statuses
from tests.features.rates.mail_clock import MailClock
from tests.support.daemons import Queued
from tests.support.far_host import FarHost
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SENDER = "shop@a.example"
WINDOW = 0.95  # seconds: one, less the jitter of this program
USED = """
SELECT c.name FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
WHERE c.credential = 'ses-1' AND j.status IN ('ENQUEUED', 'SENDING', 'SENT')
UNION SELECT q.metadata ->> 'campaign' FROM queue AS q WHERE q.metadata ->> 'credential' = 'ses-1'
"""


def start(db: psycopg.Connection, campaign: int, rate: int, jobs: int = 1) -> None:
    db.execute("SELECT campaign_start(%s, %s, %s)", (campaign, rate, jobs))


def wait_mail(clock: MailClock, number: int, sender: str = SENDER) -> None:
    """Wait until `number` more mails have begun."""
    wanted = len(clock.times[sender]) + number
    until(lambda: clock.has(sender, wanted), 60)


def done(db: psycopg.Connection, campaign: int, recipients: int) -> bool:
    """Whether each recipient has its outcome."""
    found = books(db, campaign)
    return found.get("sent", 0) + found.get("unknown", 0) == recipients


@pytest.mark.parametrize(("rate", "processes"), [(50, 1), (50, 3), (400, 2)])
def test_no_second_has_more_than_the_rate(
    system: System, db: psycopg.Connection, rate: int, processes: int
) -> None:
    """bench/rates shows how much of the rate is used."""
    clock = MailClock()
    hop = system.hop(clock)
    for _ in range(processes):
        system.queued(hop)
    campaign = make_campaign(db, rate * 10)
    start(db, campaign, rate, jobs=2)
    wait_mail(clock, rate * 10)
    assert clock.most(SENDER, WINDOW) <= rate
    until(lambda: books(db, campaign) == {"sent": rate * 10})


def test_a_stop_of_all_workers_makes_no_burst(system: System, db: psycopg.Connection) -> None:
    """Each has times of the next half second, and their rows. All are lost."""
    clock = MailClock()
    hop = system.hop(clock)
    workers = [system.queued(hop) for _ in range(3)]
    campaign = make_campaign(db, 500)
    start(db, campaign, 50, jobs=2)
    wait_mail(clock, 60)
    for worker in workers:
        worker.signal(signal.SIGSTOP)
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 5)
    went_on = time.monotonic()
    for worker in workers:
        worker.signal(signal.SIGCONT)
    wait_mail(clock, 100)
    assert sum(went_on <= at < went_on + 0.5 for at in clock.times[SENDER]) <= 25 + hop.open
    assert clock.most(SENDER, WINDOW) <= 50 + hop.open
    until(lambda: done(db, campaign, 500), 60)


@pytest.mark.needs("faketime", "root")
def test_clocks_of_other_hosts_do_not_count(
    system: System, db: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """Two hosts have clocks that are four seconds apart, and none is right."""
    clock = MailClock()
    hop = system.hop(clock)
    with ExitStack() as stack:
        for shift in ("+2s", "-2s"):
            host = stack.enter_context(FarHost(database))
            near, port = host.pass_on("127.0.0.1", hop.port)

            class FarQueued(Queued):
                before = host.before

            config = {"routes": {"*": f"{near}:{port}"}}
            more = {
                "LD_PRELOAD": "/usr/$LIB/faketime/libfaketimeMT.so.1",
                "FAKETIME": shift,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
            daemon = FarQueued(tmp_path, f"far{shift}", host.uri, config, more)
            system.daemons.append(daemon.ready())
        campaign = make_campaign(db, 500)
        start(db, campaign, 50)
        wait_mail(clock, 500)
        until(lambda: books(db, campaign) == {"sent": 500})
        owners = "SELECT count(DISTINCT worker) FROM attempts"
        assert system.ask(owners) == [{"count": 2}]
        system.stop()
    assert clock.most(SENDER, WINDOW) <= 50
    times = clock.times[SENDER]
    assert 450 / (times[-1] - times[50]) >= 0.7 * 50


def test_one_of_two_campaigns_has_the_credential(system: System, db: psycopg.Connection) -> None:
    """Several workers give it away; another credential goes on beside."""
    clock = MailClock()
    hop = system.hop(clock)
    for _ in range(4):
        system.queued(hop)
    first, second = (make_campaign(db, 150, name, sender=f"{name}@a.example") for name in "ab")
    other = make_campaign(db, 400, "c", "ses-2", sender="c@a.example")
    for campaign in (first, second, other):
        start(db, campaign, 50, jobs=2)
    looks: list[set[str]] = []

    def both_done() -> bool:
        looks.append({row[0] for row in db.execute(USED)})
        return clock.has("b@a.example", 150)

    until(both_done, 60)
    assert {len(names) for names in looks} <= {0, 1}
    assert set.union(*looks) == {"a", "b"}
    a, b = (sorted(clock.times[f"{name}@a.example"]) for name in "ab")
    assert a[-1] < b[0]
    clock.times["ses-1"] = a + b
    for name in ("ses-1", "c@a.example"):
        assert clock.most(name, WINDOW) <= 50
    until(lambda: clock.has("c@a.example", 400), 60)
    beside = [at for at in clock.times["c@a.example"] if b[0] <= at < b[-1]]
    assert len(beside) / (b[-1] - b[0]) >= 0.3 * 50  # bench/rates measures it
    until(lambda: {*statuses(db, first), *statuses(db, second)} == {"LOGGED"})
