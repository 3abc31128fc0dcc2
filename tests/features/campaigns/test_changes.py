"""Campaigns that change: another template for the rest, recipients taken out, copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg
import pytest
from psycopg import errors as pg_errors

from tests.features.campaigns.campaigns import books, make_campaign, statuses
from tests.features.campaigns.test_jobs import call, end, feed, finalise, start
from tests.support.rows import column, fetch
from tests.support.waiting import until

VERSION = (  # of the template `hello`
    "INSERT INTO templates (tenant, name, version, sender, from_field, subject, body, words)"
    " SELECT tenant, name, %s, sender, from_field, subject, body, %s FROM templates"
    " WHERE name = 'hello' AND version = 1"
)
HAD = (  # how many messages have a template, by the books, and by themselves
    "SELECT r.number, (SELECT e.template_id FROM campaign_templates AS e"
    " WHERE e.campaign_id = r.campaign_id AND e.first_message <= r.message_id"
    " ORDER BY e.first_message DESC LIMIT 1), m.template_id"
    " FROM campaign_recipients AS r JOIN messages AS m ON m.id = r.message_id"
)

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"


def put_version(db: psycopg.Connection, version: int, words: str = '{"name": ["text"]}') -> int:
    db.execute(VERSION, (version, words))
    return int(fetch(db, "SELECT max(id) FROM templates")[0])


def exchange(db: psycopg.Connection, campaign: int, version: int, reason: str | None = "r") -> int:
    query = "SELECT campaign_exchange(%s, 'hello', %s, %s)"
    return int(fetch(db, query, campaign, version, reason)[0])


def test_a_template_is_exchanged_for_the_rest(db: psycopg.Connection) -> None:
    """A retry has the new one too, and what is in the queue keeps the one with which it came."""
    campaign = make_campaign(db, 300)
    ids = [fetch(db, "SELECT max(id) FROM templates")[0], *(put_version(db, n) for n in (2, 3))]
    assert exchange(db, campaign, 2, None) == 300
    start(db, campaign)
    with pytest.raises(pg_errors.InvalidParameterValue, match="reason: the campaign was started"):
        exchange(db, campaign, 3, None)
    assert feed(db) == 200
    assert end(db, "failed", 1) == 1
    assert exchange(db, campaign, 3) == 100
    with pytest.raises(pg_errors.InvalidParameterValue, match="has this version"):
        exchange(db, campaign, 3)
    assert end(db, "delivered", 100) == 100
    feed(db)
    rows = db.execute(HAD).fetchall()
    assert all(books_say == message for _, books_say, message in rows)
    assert {message for number, _, message in rows if number <= 200} == {ids[1]}
    assert {message for number, _, message in rows if number > 200} == {ids[2]}
    end(db, "delivered")
    feed(db)
    assert finalise(db) == 1
    assert call(db, "campaign_retry", campaign) == 1
    assert feed(db) == 1
    assert column(db, "SELECT template_id FROM messages") == [ids[2]]
    reasons = "SELECT reason FROM campaign_templates ORDER BY first_message"
    assert column(db, reasons) == [None, None, "r"]
    assert call(db, "campaign_delete", make_campaign(db, 1, "other")) == 1


def test_words_that_recipients_lack_refuse_a_template(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 5)
    put_version(db, 2, '{"name": ["text"], "city": ["text"]}')
    db.execute("""UPDATE campaign_recipients SET params = params || '{"city": "Ulm"}'
        WHERE number <> 4""")
    for state in ("failed", "sent"):  # a provider may say later that sent mail failed
        db.execute("UPDATE campaign_recipients SET state = %s WHERE number = 4", (state,))
        with pytest.raises(pg_errors.InvalidParameterValue) as refused:
            exchange(db, campaign, 2)
        assert "template: city: a word is missing (recipient 4)" in str(refused.value)
    db.execute("UPDATE campaign_recipients SET recipient = '', params = '{}' WHERE number = 4")
    assert exchange(db, campaign, 2, None) == 4


def test_words_that_the_template_lacks_are_left_out(db: psycopg.Connection) -> None:
    """Lists that were checked for another template, and a value that is no object."""
    campaign = make_campaign(db, 3)
    put_version(db, 2, '{"city": ["text"], "recipient": ["text"]}')
    db.execute("""UPDATE campaign_recipients SET params = CASE number WHEN 1 THEN '{"city": "Ulm"}'
        WHEN 2 THEN '{"city": "Bonn", "name": "N", "day": "Fri"}' ELSE '"x"' END::jsonb""")
    db.execute("UPDATE campaigns SET template_id = (SELECT max(id) FROM templates)")
    start(db, campaign)
    assert feed(db) == 3
    one, two, _ = column(db, "SELECT params -> 'words' FROM messages ORDER BY id")
    assert one == {"city": "Ulm", "recipient": "r1@h.example"}
    assert two == {"city": "Bonn", "recipient": "r2@h.example"}


@pytest.mark.parametrize("taken", [False, True])
def test_a_feed_that_runs_and_an_exchange_come_one_after_the_other(
    database: str, db: psycopg.Connection, taken: bool
) -> None:
    """Also one whose worker has just taken the credential, in a transaction that is open."""
    campaign = make_campaign(db, 300)
    put_version(db, 2)
    start(db, campaign)
    if taken:
        call(db, "campaign_take")
    with (
        psycopg.connect(database) as worker,
        psycopg.connect(database, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        worker.execute("SELECT campaign_take()")
        if taken:
            worker.execute("SELECT campaign_feed('ses-1', 'w')")
        changed = pool.submit(exchange, other, campaign, 2)
        until(lambda: column(db, WAITS, other.info.backend_pid) == [1])
        worker.commit()
        assert changed.result() == (100 if taken else 300)
    assert end(db, "delivered") == (200 if taken else 0)
    assert feed(db) > 0
    rows = db.execute(HAD).fetchall()
    assert rows
    assert all(said == message for _, said, message in rows)


def test_an_exchange_waits_for_a_list_that_was_checked_for_the_template_before(
    database: str, db: psycopg.Connection
) -> None:
    campaign = make_campaign(db, 0)
    put_version(db, 2, '{"name": ["text"], "city": ["text"]}')
    with (
        psycopg.connect(database) as importer,
        psycopg.connect(database, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        add = """SELECT campaign_add(%s, '{r1@h.example}', ARRAY['{"name": "N"}'::jsonb])"""
        importer.execute(add, (campaign,))
        changed = pool.submit(exchange, other, campaign, 2)
        until(lambda: changed.done() or column(db, WAITS, other.info.backend_pid) == [1])
        importer.commit()
        with pytest.raises(pg_errors.InvalidParameterValue, match="city: a word is missing"):
            changed.result()


def test_feeds_beside_exchanges(database: str, db: psycopg.Connection) -> None:
    """The books tell the version of each mail, whatever comes when."""
    campaign = make_campaign(db, 3000)
    for version in range(2, 12):
        put_version(db, version)
    start(db, campaign, 50)

    fed, ended = f"SELECT count(*) FROM ({HAD}) AS had", Event()

    def work(_: int) -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            while not ended.is_set():
                call(mine, "campaign_take")
                mine.execute("SELECT campaign_feed('ses-1', 'w')")
                mine.execute("UPDATE campaign_recipients SET state = 'sent' WHERE state = 'queued'")

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, n) for n in range(3)]
        try:
            for version in range(2, 12):
                exchange(db, campaign, version)
            until(lambda: column(db, fed)[0] > 500 or any(worker.done() for worker in workers))
        finally:
            ended.set()
        for worker in workers:
            worker.result()
    rows = db.execute(HAD).fetchall()
    assert len(rows) > 500
    assert all(said == message for _, said, message in rows)


def test_recipients_are_taken_out(db: psycopg.Connection) -> None:
    campaign = make_campaign(db, 0)
    for first, last in ((1, 3), (4, 6)):
        addresses = [f"R{n}@h.example" for n in range(first, last + 1)]
        db.execute("""SELECT campaign_add(%s, %s, array_fill('{"name": "N"}'::jsonb, ARRAY[3]))""",
                   (campaign, addresses))  # fmt: skip
    assert db.execute("SELECT number, first, last FROM campaign_lists").fetchall() == [(1, 1, 6)]
    db.execute("INSERT INTO campaign_recipients (campaign_id, number, recipient, domain, params)"
               " SELECT %s, n, 'x' || n || '@h.example', 'h.example', '{}'"
               " FROM generate_series(7, 12) AS n", (campaign,))  # fmt: skip
    assert call(db, "campaign_list", campaign, "list.csv", 7) == 2
    for named, words in (
        ("", "either"), (", list => 3", "no list 3"),
        (", '{r1@h.example,y@h.example}'", "no such recipient"), (", '{}'", "at least one"),
    ):  # fmt: skip
        with pytest.raises(pg_errors.InvalidParameterValue, match=words):
            db.execute(f"SELECT campaign_remove(%s{named})".encode(), (campaign,))
    start(db, campaign, 2)
    assert feed(db) == 4
    assert end(db, "delivered", 1) == 1
    db.execute("UPDATE queue SET status = 'SENDING', lease_owner = 'w', lease_since = now(),"
               " lease_token = 7, lease_until = now() + interval '1 minute'"
               " WHERE recipient = 'R2@h.example'")  # fmt: skip
    remove = "SELECT removed, kept FROM campaign_remove(%s, %s)"
    assert fetch(db, remove, campaign, ["r1@h.example", '"r2"@h.example', "r3@h.example"]) == (1, 2)
    assert column(db, "SELECT recipient FROM queue ORDER BY 1") == ["R2@h.example", "R4@h.example"]
    remove = "SELECT removed, kept FROM campaign_remove(%s, list => %s)"
    assert fetch(db, remove, campaign, 2) == (6, 0)
    assert fetch(db, remove, campaign, 1) == (3, 2)
    assert end(db, "delivered") == 1
    assert books(db, campaign) == {"sent": 2}
    assert feed(db) == 0
    feed(db)
    finalise(db)
    assert statuses(db, campaign) == ["LOGGED"]
    assert call(db, "campaign_import", campaign) == 12, "no number is used again"


def test_recipients_with_facts_stay_and_numbers_are_not_used_again(
    db: psycopg.Connection,
) -> None:
    campaign = make_campaign(db, 0)
    add = """SELECT campaign_add(%s, %s, array_fill('{"name": "N"}'::jsonb, ARRAY[4]))"""
    numbers = "SELECT number FROM campaign_recipients ORDER BY number"
    db.execute(add, (campaign, [f"r{n}@h.example" for n in range(1, 5)]))
    # a retry has made them unsent again
    db.execute(
        "UPDATE campaign_recipients"
        " SET bounced = number = 1, unsubscribed = number = 2, complained = number = 3"
    )
    remove = "SELECT removed, kept FROM campaign_remove(%s, list => 1)"
    assert fetch(db, remove, campaign) == (1, 3)
    assert column(db, numbers) == [1, 2, 3]
    db.execute("DELETE FROM campaign_recipients")
    db.execute(add, (campaign, [f"s{n}@h.example" for n in range(1, 5)]))
    assert column(db, numbers) == [5, 6, 7, 8]


def test_a_copy(db: psycopg.Connection) -> None:
    zone = {"opens": "09:00", "closes": "17:00", "zone": "Asia/Tokyo", "zone_column": "tz"}
    campaign = make_campaign(db, 6, scope="news", tenant="shop", deadline="2100-01-01", **zone)
    db.execute("UPDATE campaign_recipients SET state = (ARRAY['sent', 'failed', 'invalid', 'sent',"
               " 'unsent', 'invalid'])[number], zone = 'UTC', bounced = number = 2")  # fmt: skip
    db.execute("UPDATE campaign_recipients SET recipient = '', domain = '' WHERE number = 6")
    db.execute("SELECT suppress('r5@h.example', 'shop', 'news')")
    copied = call(db, "campaign_copy", campaign, "all")
    rows = "SELECT recipient, state, zone, bounced FROM campaign_recipients WHERE campaign_id = %s"
    assert db.execute(rows + " ORDER BY number", (copied,)).fetchall() == [
        *((f"r{n}@h.example", "unsent", "UTC", False) for n in range(1, 5)),
        ("r5@h.example", "invalid", "UTC", False),
    ]
    same = "to_jsonb(c) - '{id,name,deadline,created_at}'::text[]"
    query = f"SELECT count(DISTINCT {same}), count(deadline) FROM campaigns AS c"
    assert fetch(db, query) == (1, 1)
    failed = call(db, "campaign_copy", campaign, "failed", ["failed", "sent"])
    assert books(db, failed) == {"unsent": 3}
    assert books(db, fetch(db, "SELECT campaign_copy(%s, 'none', recipients => false)", campaign)[0]
                 ) == {}  # fmt: skip
    with pytest.raises(pg_errors.InvalidParameterValue) as refused:
        call(db, "campaign_copy", campaign, "x", ["faild"])
    assert refused.value.diag.message_hint == "Did you mean failed?"
    with pytest.raises(pg_errors.UniqueViolation):
        call(db, "campaign_copy", campaign, "all")
    assert len(column(db, "SELECT id FROM campaigns")) == 4
    assert (
        column(db, "SELECT name FROM campaign_lists ORDER BY campaign_id") == ["copy of news"] * 2
    )
