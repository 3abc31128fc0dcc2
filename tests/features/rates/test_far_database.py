"""Rates far from PostgreSQL: strict, few times are lost, and a killed worker leaves few marks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.helper import Helper
from tests.features.campaigns.campaigns import books, make_campaign
from tests.features.rates.mail_clock import MailClock
from tests.support.nexthop import Do, Transaction
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SENDER = "shop@a.example"


@contextmanager
def far(uri: str, folder: Path, round_trip: float) -> Iterator[str]:
    """Give the URI of a database that is so many seconds away."""
    parts = conninfo_to_dict(uri)
    upstream = [str(parts["host"]), str(parts.get("port") or 5432)]
    config = {
        "addresses": ["127.0.0.1"],
        "namespace": "",
        "upstream": upstream,
        "delay": round_trip / 2,
    }
    proxy = Helper("delay_line", config, folder / "delay_line.log")
    try:
        port = proxy.wait("ready")["ports"][0]
        yield make_conninfo(uri, host="127.0.0.1", port=port)
    finally:
        proxy.close()


@pytest.mark.parametrize("round_trip", [0.008, 0.05])
def test_few_times_are_lost_far_from_the_database(
    system: System, db: psycopg.Connection, tmp_path: Path, round_trip: float
) -> None:
    clock = MailClock()
    hop = system.hop(clock)
    with far(system.uri, tmp_path, round_trip) as uri:
        near, system.uri = system.uri, uri
        system.queued(hop)
        system.uri = near
        campaign = make_campaign(db, 200)
        db.execute("SELECT campaign_start(%s, 40)", (campaign,))
        until(lambda: books(db, campaign) == {"sent": 200}, 60)
        assert clock.most(SENDER) <= 40
        system.stop()


def test_a_killed_worker_leaves_as_unknown_what_it_had_begun(
    system: System, db: psycopg.Connection
) -> None:
    """The next hop hangs: all further mail loses its time, again and again."""
    seen = 0

    def hang(point: str, line: str, transaction: Transaction | None) -> Do | None:
        nonlocal seen
        seen += point == "MAIL"
        return Do(hang=True) if point == "MAIL" and seen > 20 else None

    hop = system.hop(hang)
    worker = system.queued(hop, delivery={"connections": 3}, process={"lease": 10})
    campaign = make_campaign(db, 400)
    db.execute("SELECT campaign_start(%s, 100)", (campaign,))
    until(lambda: hop.open == 3 and seen == 23)
    until(lambda: column(db, "SELECT lost_share > 0.5 FROM budgets") == [True])
    (owner,) = column(db, "SELECT DISTINCT lease_owner FROM queue WHERE lease_owner IS NOT NULL")
    worker.process.kill()
    worker.process.wait()
    system.queued(hop, delivery={"connections": 3}, process={"lease": 10})
    leased = "SELECT count(*) FROM queue WHERE lease_owner = %s"
    until(lambda: fetch(db, leased, owner) == (0,), 60)
    unknown = "SELECT count(*) FROM attempts WHERE event = 'unknown'"
    assert column(db, unknown) == [3]
