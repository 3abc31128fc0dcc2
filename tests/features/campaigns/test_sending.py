"""Campaigns through real daemons: exact books while they run, stop, and are killed."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.features.campaigns.campaigns import books, make_campaign, statuses
from tests.support.nexthop import holding_at
from tests.support.rows import column
from tests.support.system import System
from tests.support.waiting import until


def start(db: psycopg.Connection, campaign: int, rate: float | None = None) -> None:
    db.execute("SELECT campaign_start(%s, %s)", (campaign, rate))


def is_done(db: psycopg.Connection, campaign: int) -> bool:
    books(db, campaign)
    return set(statuses(db, campaign)) == {"LOGGED"}


def last_begun(db: psycopg.Connection) -> datetime:
    """Return when the last mail of any campaign was begun."""
    (at,) = column(db, "SELECT max(sent_at) FROM campaign_recipients")
    assert isinstance(at, datetime)
    return at


def test_each_recipient_gets_one_mail(system: System, db: psycopg.Connection) -> None:
    hop = system.hop()
    system.queued(hop)
    campaign = make_campaign(db, 1000)
    start(db, campaign)
    until(lambda: is_done(db, campaign))
    assert books(db, campaign) == {"sent": 1000}
    got = Counter(recipient for kept in hop.kept for recipient in kept.recipients)
    assert set(got.values()) == {1}
    assert len(got) == 1000
    assert b"Subject: Hello N" in (hop.kept[0].content or b"")


@pytest.mark.slow
def test_nothing_begins_a_second_after_a_stop(system: System, db: psycopg.Connection) -> None:
    hop = system.hop()
    system.queued(hop)
    campaign = make_campaign(db, 20_000)
    start(db, campaign)
    hop.wait_kept(300)
    (stopped,) = column(db, "SELECT clock_timestamp() FROM campaign_stop(%s)", campaign)
    until(lambda: is_done(db, campaign))
    assert not db.execute("SELECT FROM queue").fetchall()
    assert last_begun(db) < stopped + timedelta(seconds=1)
    found = books(db, campaign)
    assert found == {"sent": len(hop.kept), "unsent": 20_000 - len(hop.kept)}


@pytest.mark.slow
def test_nothing_begins_after_its_hours(system: System, db: psycopg.Connection) -> None:
    """Its mail is unsent again, and goes when they begin."""
    hop = system.hop()
    system.queued(hop)
    now = datetime.now(UTC)
    opens, closes = now - timedelta(hours=1), now + timedelta(hours=1)
    campaign = make_campaign(db, 20_000, opens=opens.time(), closes=closes.time())
    start(db, campaign)
    hop.wait_kept(100)
    db.execute("UPDATE campaigns SET closes = (now() AT TIME ZONE 'UTC')::time")
    query = "UPDATE campaign_jobs SET closes_at = clock_timestamp() RETURNING closes_at"
    (closed,) = column(db, query)
    until(lambda: statuses(db, campaign) == ["READY"] and "queued" not in books(db, campaign))
    assert last_begun(db) < closed + timedelta(seconds=1)
    assert not db.execute("SELECT FROM queue").fetchall()
    assert books(db, campaign) == {"sent": len(hop.kept), "unsent": 20_000 - len(hop.kept)}
    until(lambda: not db.execute("SELECT FROM credential_use").fetchall())
    begun = len(hop.kept)
    db.execute("UPDATE campaign_jobs SET opens_at = now()")
    hop.wait_kept(begun + 100)


def test_a_row_that_is_taken_out_while_its_worker_dies_is_unknown(
    system: System, db: psycopg.Connection
) -> None:
    """The next hop may have the mail, so that a retry must not send it."""
    hop = system.hop(holding_at("end of data"))
    campaign = make_campaign(db, 1)
    start(db, campaign)
    daemon = system.queued(hop)
    until(lambda: any(each.content for each in hop.transactions))
    db.execute("SELECT cancel(message_id) FROM queue")
    daemon.kill()
    db.execute("UPDATE queue SET lease_until = now() - interval '1 s'")
    system.queued(hop)
    until(lambda: is_done(db, campaign))
    assert books(db, campaign) == {"unknown": 1}
    assert system.events("r1@h.example").count("unknown") == 1


@pytest.mark.slow
def test_books_are_exact_while_workers_are_killed(system: System, db: psycopg.Connection) -> None:
    hop = system.hop()
    campaign = make_campaign(db, 5000)
    start(db, campaign)
    flying = 0
    fate = random.Random(1)
    for n in range(6):
        daemon = system.queued(hop)
        before = len(hop.kept)
        wanted = before + fate.randrange(20, 250)
        until(lambda: len(hop.kept) >= wanted or is_done(db, campaign))  # noqa: B023 - called now
        if n == 4:
            db.execute("SELECT campaign_stop(%s)", (campaign,))
            db.execute("SELECT campaign_resume(%s)", (campaign,))
        daemon.kill()
        ((open_now,),) = db.execute(
            "SELECT count(*) FROM queue WHERE begun = lease_token"
        ).fetchall()
        flying += open_now
        books(db, campaign)
    system.queued(hop)
    until(lambda: is_done(db, campaign), 100)
    found = books(db, campaign)
    got = Counter(recipient for kept in hop.kept for recipient in kept.recipients)
    assert set(got.values()) == {1}
    assert found.get("unknown", 0) <= flying
    assert found["sent"] + found.get("unknown", 0) == 5000
    sent = {
        row[0]
        for row in db.execute("SELECT recipient FROM campaign_recipients WHERE state = 'sent'")
    }
    unknown = {
        row[0]
        for row in db.execute("SELECT recipient FROM campaign_recipients WHERE state = 'unknown'")
    }
    assert sent <= set(got)
    assert set(got) <= sent | unknown
