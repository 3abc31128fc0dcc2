"""Rates far from PostgreSQL: strict, few times are lost, and a killed worker leaves few marks."""

from __future__ import annotations

import psycopg
import pytest

from tests.features.campaigns.campaigns import make_campaign
from tests.support.nexthop import Do, Transaction
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.slow


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
