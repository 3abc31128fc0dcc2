"""What recipients do after they got mail of a campaign: complaints, bounces, unsubscribing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

from tests.features.campaigns.campaigns import make_campaign
from tests.features.campaigns.test_jobs import end, feed, start
from tests.support.rows import column
from tests.support.waiting import until

SUMS = "SELECT bounced::integer, unsubscribed::integer, complained::integer FROM campaign_sums"
BOUNCED = "returned_at = now(), class = 'unknown_user', returned = '550 5.1.1 no such user'"


def delivered(db: psycopg.Connection, number: int) -> int:
    """Make a campaign whose mail was delivered, with its attempts in the log; return its id."""
    campaign = make_campaign(db, number, scope="news")
    start(db, campaign)
    assert feed(db) == number
    db.execute("SELECT rows_log(array_agg(id), 'delivered') FROM queue")
    assert end(db, "delivered") == number
    return campaign


def use_link(db: psycopg.Connection, function: str, campaign: int, number: int) -> bool:
    query = f"SELECT {function}(%s, %s, current_date)"
    ((found,),) = db.execute(query, (campaign, number)).fetchall()
    return bool(found)


def test_each_recipient_counts_once(db: psycopg.Connection) -> None:
    campaign = delivered(db, 6)
    for _ in range(2):
        assert use_link(db, "unsubscribe", campaign, 1)
        assert use_link(db, "unsubscribe", campaign, 2)
        assert use_link(db, "link_complaint", campaign, 2)
        assert use_link(db, "unsubscribe", campaign, 0), "of a test mail"
        assert not use_link(db, "unsubscribe", campaign, 7)
        db.execute("UPDATE attempts SET complained_at = clock_timestamp()"
                   " WHERE recipient ~ '^r[23]@'")  # fmt: skip
        db.execute(f"UPDATE attempts SET {BOUNCED} WHERE recipient ~ '^r[34]@'".encode())
    assert db.execute(SUMS).fetchall() == [(2, 2, 2)]
    for name, numbers in (("bounced", [3, 4]), ("unsubscribed", [1, 2]), ("complained", [2, 3])):
        query = f"SELECT number FROM campaign_recipients WHERE {name} ORDER BY 1"
        assert column(db, query) == numbers
    assert use_link(db, "unsubscribe", campaign, 5)
    db.execute("DELETE FROM campaign_recipients WHERE number = 1")
    assert db.execute(SUMS).fetchall() == [(2, 2, 2)]


def test_a_bounce_and_an_outcome_never_wait_for_each_other(
    db: psycopg.Connection, database: str
) -> None:
    """Both lock the suppression of the address and the recipient: in one order."""
    delivered(db, 1)
    db.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$"
    )
    # by its name after returned_campaign, and before returned_suppress
    db.execute("CREATE TRIGGER returned_slow AFTER UPDATE ON attempts FOR EACH ROW"
               " EXECUTE FUNCTION slow()")  # fmt: skip
    db.execute("SELECT pg_advisory_lock(1)")

    def bounce() -> None:
        with psycopg.connect(database) as other:
            other.execute(f"UPDATE attempts SET {BOUNCED}".encode())

    def settle() -> None:
        with psycopg.connect(database) as other:
            other.execute("SELECT suppress('r1@h.example', reason => 'bounced')")
            other.execute("UPDATE campaign_recipients SET answered_at = now()")

    def waiting() -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        ((number,),) = db.execute(f"{query} AND wait_event_type = 'Lock'").fetchall()
        return int(number)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(bounce)
        until(lambda: waiting() == 1)
        second = threads.submit(settle)
        until(lambda: second.done() or waiting() == 2)
        db.execute("SELECT pg_advisory_unlock(1)")
        first.result()
        second.result()
    assert db.execute(SUMS).fetchall() == [(1, 0, 0)]
