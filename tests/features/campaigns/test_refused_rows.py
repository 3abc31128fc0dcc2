"""Rows and campaigns that the database refuses, retries that take each once, and a race."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta.postgres.link import Link
from pgmta_features.campaigns.feed import CampaignFeed
from pgmta_features.campaigns.feeder import Feeder
from tests.features.campaigns.campaigns import books, make_campaign, statuses
from tests.features.campaigns.test_jobs import LEASE, call, end, feed, finalise, start
from tests.support.waiting import until

LONG = "x" * 9000


def insert(db: psycopg.Connection, campaign: int, **given: Any) -> None:
    row = {"number": 1, "recipient": "a@h.example", "domain": "h.example", "params": "{}", **given}
    db.execute(
        "INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params)"
        f" VALUES ({campaign}, %(number)s, %(recipient)s, %(domain)s, %(params)s)",
        row,
    )


def test_rows_that_the_queue_would_refuse_are_refused_at_once(db: psycopg.Connection) -> None:
    """Programs insert rows too, and one of these would stop the feed of its campaign."""
    campaign = make_campaign(db, 0)
    for given in (
        {"recipient": f"{LONG}@h.example"}, {"domain": LONG}, {"number": 2**31 - 1},
        {"params": f'{{"name": "{LONG * 30}"}}'},
    ):  # fmt: skip
        with pytest.raises(pg_errors.CheckViolation):
            insert(db, campaign, **given)
    for rate in (1e-300, 5e-324, float("nan")):
        with pytest.raises(pg_errors.CheckViolation):
            db.execute("SELECT budget_set('credential:ses-1', %s)", (rate,))
    insert(db, campaign, number=10**9, recipient=f"{'a' * 64}@h.example", params='{"name": ""}')
    start(db, campaign, 1e-6)
    assert feed(db) == 1


async def test_a_campaign_that_is_refused_keeps_no_other_back(
    db: psycopg.Connection, database: str
) -> None:
    db.execute("ALTER TABLE campaign_recipients DROP CONSTRAINT campaign_recipients_sizes")
    bad = make_campaign(db, 0, "bad", "a")
    insert(db, bad, domain="".join(map(chr, range(0x4E00, 0x4E00 + 9000))))
    good = make_campaign(db, 5, "good", "b")
    for campaign in (bad, good):
        start(db, campaign)
    woken = []

    async def wake() -> None:
        woken.append(True)

    link = Link(database, "test")
    try:
        with pytest.raises(pg_errors.ProgramLimitExceeded):
            await Feeder(CampaignFeed(link, "w"), wake, 1.0).feed()
    finally:
        await link.close()
    assert books(db, good) == {"queued": 5}
    assert books(db, bad) == {"unsent": 1}
    assert woken


def test_a_retry_takes_each_recipient_once(db: psycopg.Connection) -> None:
    """One that comes back unsent, because a person had to be forgotten, brings no other back."""
    campaign = make_campaign(db, 10)
    start(db, campaign)
    feed(db)
    assert end(db, "unknown", 5) + end(db, "failed") == 10
    feed(db)
    for again in (10, 9):
        assert finalise(db) == 1
        assert call(db, "campaign_retry", campaign, True) == 1
        assert feed(db) == again
        forgotten = f"r{11 - again}@h.example"
        for part in ("suppressions", "queue"):
            db.execute("SELECT forget(%s, %s)", (forgotten, part))
        assert end(db, "unknown", 4) + end(db, "failed") == again - 1
        assert call(db, "campaign_reconcile", 100) == 1
        assert feed(db) == 0
        feed(db)
    assert books(db, campaign) == {"invalid": 2, "unknown": 4, "errored": 4}


def test_a_retry_leaves_mail_on_hold_to_its_operator(db: psycopg.Connection) -> None:
    """A release of it would send a second copy, and nothing would say so."""
    campaign = make_campaign(db, 2)
    start(db, campaign)
    assert feed(db) == 2
    # as settle does with mail that can't be composed, and with an operator's hold
    db.execute("UPDATE campaign_recipients SET state = 'failed'")
    db.execute("UPDATE queue SET status = 'HOLD' WHERE recipient = 'r1@h.example'")
    db.execute("DELETE FROM queue WHERE recipient = 'r2@h.example'")
    feed(db)
    assert finalise(db) == 1
    assert call(db, "campaign_retry", campaign) == 1
    assert feed(db) == 1
    rows = db.execute("SELECT recipient, status FROM queue ORDER BY id").fetchall()
    assert rows == [("r1@h.example", "HOLD"), ("r2@h.example", "QUEUED")]
    assert books(db, campaign) == {"errored": 1, "queued": 1}


def test_an_operator_and_the_end_of_a_job_never_wait_for_each_other(
    db: psycopg.Connection, database: str
) -> None:
    """The job is locked by its end, and the campaign by the operator, who waits for the job."""
    campaign = make_campaign(db, 1)
    start(db, campaign)
    feed(db)
    end(db, "delivered")
    feed(db)
    db.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$"
    )
    db.execute(
        "CREATE TRIGGER slow AFTER UPDATE ON campaign_jobs FOR EACH ROW"
        " WHEN (NEW.status = 'LOGGED') EXECUTE FUNCTION slow()"
    )
    db.execute("SELECT pg_advisory_lock(1)")

    def run(function: str, *values: object) -> int:
        with psycopg.connect(database, autocommit=True) as other:
            return call(other, function, *values)

    def waiting() -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        ((number,),) = db.execute(f"{query} AND wait_event_type = 'Lock'").fetchall()
        return int(number)

    with ThreadPoolExecutor(2) as threads:
        ends = threads.submit(run, "campaign_finalise", LEASE)
        until(lambda: waiting() == 1)
        stop = threads.submit(run, "campaign_stop", campaign)
        until(lambda: waiting() == 2)
        db.execute("SELECT pg_advisory_unlock(1)")
        assert (ends.result(), stop.result()) == (1, 0)
    db.execute("DROP TRIGGER slow ON campaign_jobs")
    finalise(db)
    assert statuses(db, campaign) == ["LOGGED"]
    assert not db.execute("SELECT FROM credential_use").fetchall()
    assert books(db, campaign) == {"sent": 1}
