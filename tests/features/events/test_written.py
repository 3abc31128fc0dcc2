"""Which events are written: those of the log, one to one, in the transaction of each outcome."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from tests.features.campaigns.campaigns import make_campaign
from tests.features.campaigns.test_jobs import end, feed, start
from tests.features.events.event_log import (
    CONTENT,
    events,
    kinds,
    number,
    rows_of,
    send,
    subscribe,
)
from tests.support.rows import attempt, fetch, row
from tests.support.shop_login import shop_login

TRIGGERS = "SELECT tgname FROM pg_trigger WHERE tgname LIKE '%_events' AND tgparentid = 0"
OF_LOG = {"failed": "bounced", "deleted": "cancelled"}


def hold(db: psycopg.Connection, rows: list[int], action: str = "hold") -> None:
    details = '{"reason": "a look", "quarantine": "q"}'
    db.execute("SELECT queue_change_rows(%s, %s, 'me', %s)", (action, rows, details))


def test_each_entry_of_the_log_has_one_event(db: psycopg.Connection) -> None:
    send(db)  # before anybody subscribes
    attempt(db)
    subscribe(db)
    for place, event in enumerate(("delivered", "deferred", "failed", "unknown", "expired"), 10):
        attempt(db, place, place, event=event)
    message = send(db, "x@b.example", "y@b.example")
    db.execute("SELECT cancel(%s, 'no longer')", (message,))
    db.execute("SELECT rows_log(%s, 'deleted', 'me', 'spam')", (rows_of(db, send(db)),))
    logged = "SELECT event, message_id, row_id FROM attempts WHERE message_id > 1 ORDER BY ctid"
    number(db)
    found = [e for e in events(db) if e.kind != "accepted"]
    assert [(e.kind, e.message_id, e.row_id) for e in found] == [
        (OF_LOG.get(event, event), message, row)
        for event, message, row in db.execute(logged).fetchall()
    ]
    assert len(found) == 8
    assert len({e.id for e in found}) == 8


def test_what_is_given_up_has_expired(db: psycopg.Connection) -> None:
    subscribe(db)
    for place, name in enumerate(("expired", "unknown_user"), 1):
        attempt(db, place, place, event="failed", reply="no", **{"class": name})
    assert kinds(db) == ["expired", "bounced"]
    given_up = events(db)[0].document or {}
    assert [given_up[key] for key in ("type", "class", "code", "reply")] == [
        "mail.expired", "expired", 450, "no",
    ]  # fmt: skip
    assert "reason" not in given_up


def test_what_rolls_back_leaves_no_event(db: psycopg.Connection, database: str) -> None:
    subscribe(db)
    with psycopg.connect(database) as other:
        other.execute("SELECT cancel(%s)", (send(other),))
        other.rollback()
        other.execute("SAVEPOINT s")
        attempt(other, 1, 1)
        other.execute("ROLLBACK TO s")
        attempt(other, 2, 2)
    number(db)
    assert [(e.kind, e.message_id) for e in events(db)] == [("deferred", 2)]


def test_a_hold_and_a_release_have_events_and_outcomes_have_no_second_one(
    db: psycopg.Connection,
) -> None:
    subscribe(db)
    message = send(db, "x@b.example", "y@b.example")
    one, other = rows_of(db, message)
    hold(db, [one])
    hold(db, [one], "quarantine")  # it is on hold already
    db.execute("UPDATE queue SET status = 'QUEUED' WHERE id = %s", (one,))  # by hand
    hold(db, [one])
    hold(db, [one], "bounce")
    hold(db, [other])
    db.execute("SELECT cancel(%s)", (message,))
    db.execute("UPDATE queue SET status = 'HOLD', report_kind = 'failed' WHERE id = %s", (one,))
    held = row(db, message, status="HOLD", hold_reason="of a hook")
    assert kinds(db) == ["accepted", "held", "released", "held", "held", "cancelled", "held"]
    found = events(db)
    assert [e.row_id for e in found[1:]] == [one, one, one, other, other, held]
    assert [(e.document or {}).get("reason") for e in found[1:3]] == ["a look", None]


def test_what_becomes_known_later_has_events(db: psycopg.Connection) -> None:
    subscribe(db)
    for place, event in enumerate(("delivered", "delivered", "unknown"), 1):
        attempt(db, place, place, event=event, code=250, reply="ok")
    back = "UPDATE attempts SET returned_at = now(), class = 'full', returned = '452 4.2.2 full'"
    db.execute(back.encode() + b" WHERE message_id = 1")
    db.execute("UPDATE attempts SET complained_at = now() WHERE message_id = 2")
    db.execute("UPDATE attempts SET event = 'delivered' WHERE message_id = 3")
    db.execute("UPDATE attempts SET reply = '', confirmed_at = now()")
    assert kinds(db)[3:] == ["bounced", "complained", "delivered"]
    bounced, complained, delivered = events(db)[3:]
    document = bounced.document or {}
    assert [document[key] for key in ("code", "enhanced", "class")] == [452, "4.2.2", "full"]
    assert (complained.message_id, delivered.message_id) == (2, 3)


def test_who_unsubscribes_or_complains_about_mail_has_one_event(db: psycopg.Connection) -> None:
    subscribe(db)
    message = send(db, "x@b.example")
    (one,) = rows_of(db, message)
    db.execute("SELECT unsubscribe(%s, %s, current_date)", (-message, one))
    db.execute("SELECT unsubscribe(%s, %s, current_date)", (-message, one))
    db.execute("SELECT link_complaint(%s, %s, current_date)", (-message, one))
    db.execute(
        "SELECT suppress('y@b.example', reason => 'complained', source => 'a telephone call')"
    )
    attempt(db, 9, 9, event="delivered", recipient="z@b.example")
    db.execute("SELECT attempt_returned(9, 9, current_date, '', '', true)")  # suppresses, too
    found = kinds(db)
    assert found[0] == "accepted"
    assert [k for k in found if k in ("unsubscribed", "complained")] == [
        "unsubscribed", "unsubscribed", "complained", "complained",
    ]  # fmt: skip
    document = next(e.document for e in events(db) if e.kind == "unsubscribed") or {}
    assert (document["recipient"], document["message_id"]) == ("x@b.example", str(message))


def test_who_sent_the_mail_sees_who_unsubscribes_days_later(db: psycopg.Connection) -> None:
    subscribe(db)
    earlier = fetch(db, "SELECT now() - interval '3 days'")[0]
    attempt(
        db, 6, 7, event="delivered", code=250, ended_at=earlier, tenant="shop",
        submitted_by="key:shop", metadata='{"order": "7"}',
    )  # fmt: skip
    db.execute("SELECT unsubscribe(-7, 6, %s::date)", (earlier,))
    number(db)
    _, event = events(db, viewer="key:shop")
    document = event.document or {}
    assert {name: document[name] for name in ("type", "sender", "metadata", "submitted_by")} == {
        "type": "mail.unsubscribed", "sender": "s@a.example", "metadata": {"order": "7"},
        "submitted_by": "key:shop",
    }  # fmt: skip
    assert event.at > earlier


@pytest.mark.parametrize("where", ["in the log", "in the queue"])
def test_a_reaction_to_a_campaign_names_its_mail(db: psycopg.Connection, where: str) -> None:
    subscribe(db)
    campaign = make_campaign(db, 1, scope="news")
    start(db, campaign)
    assert feed(db) == 1
    if where == "in the log":
        db.execute("SELECT rows_log(array_agg(id), 'delivered') FROM queue")
        assert end(db, "delivered") == 1
    db.execute("SELECT unsubscribe(%s, 1, current_date)", (campaign,))
    number(db)
    sender = fetch(db, "SELECT created_by FROM campaigns")[0]
    found = {event.kind: event for event in events(db, viewer=sender)}
    assert set(found) - {"delivered", "suppressed"} == {"accepted", "unsubscribed"}
    assert found["unsubscribed"].message_id == found["accepted"].message_id
    assert ((found["unsubscribed"].document or {})["metadata"])["campaign"]


def test_a_source_that_a_client_wrote_names_no_mail_of_others(db: psycopg.Connection) -> None:
    subscribe(db)
    for place, tenant in ((101, "ta"), (102, "tb")):
        attempt(db, place, place, tenant=tenant, recipient="x@b.example", event="delivered")
    waiting = send(db, "X@b.example")
    for address, tenant, source in (
        ("x@b.example", "ta", "message 102"),
        ("x@b.example", "ta", f"message {waiting}"),
        ("y@b.example", "ta", "message 101"),
        ("z@b.example", "ta", "message 9"),
        ("x@b.example", "tb", "message 102"),
        ("x@b.example", "", f"unsubscribe link of message {waiting}"),
    ):
        db.execute(
            "SELECT suppress(%s, tenant => %s, reason => 'complained', source => %s)",
            (address, tenant, source),
        )
    number(db)
    found = [e for e in events(db) if e.kind == "complained"]
    assert [e.message_id for e in found] == [None, None, None, None, 102, waiting]
    assert {(e.document or {}).get("tenant") for e in found[:4]} == {"ta"}


def test_subscriptions_change_in_read_committed_only(db: psycopg.Connection, database: str) -> None:
    """An older snapshot shows subscriptions that have ended, and triggers would be missing."""
    subscribe(db, "one")
    with psycopg.connect(database) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for call in ("events_subscribe('two', 'reader')", "events_unsubscribe('one')",
                     "events_subscribe('one', 'reader')"):  # fmt: skip
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="READ COMMITTED"):
                other.execute(f"SELECT {call}".encode())
            other.rollback()


def test_triggers_are_there_while_somebody_subscribes(db: psycopg.Connection) -> None:
    assert db.execute(TRIGGERS.encode()).fetchall() == []
    for name in ("one", "two", "one"):
        subscribe(db, name)
    with pytest.raises(errors.UniqueViolation, match="subscription one is a reader"):
        subscribe(db, "one", "table")
    assert len(db.execute(TRIGGERS.encode()).fetchall()) == 7
    ends = [fetch(db, "SELECT events_unsubscribe(%s)", name) for name in ("one", "one", "two")]
    assert ends == [(True,), (False,), (True,)]
    assert db.execute(TRIGGERS.encode()).fetchall() == []
    attempt(db)
    assert kinds(db) == []


def test_a_subscription_stops_nobody_while_an_application_has_cancelled(
    db: psycopg.Connection, database: str
) -> None:
    """The lock of a new trigger waits for open transactions, and whoever settles behind it."""
    message = send(db)
    with psycopg.connect(database) as application:
        application.execute("SELECT cancel(%s)", (message,))
        with pytest.raises(errors.LockNotAvailable):
            subscribe(db)
        attempt(db, 5, 5)
    subscribe(db)
    attempt(db, 6, 6)
    assert kinds(db) == ["deferred"]


def test_new_days_of_the_log_have_the_triggers(db: psycopg.Connection) -> None:
    subscribe(db)
    db.execute("SELECT days_make('attempts', 8)")
    attempt(db, ended_at=fetch(db, "SELECT now() + interval '8 days'")[0])
    db.execute("UPDATE attempts SET complained_at = now()")
    assert kinds(db) == ["deferred", "complained"]


EVIL = """
CREATE SEQUENCE evil.ran;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT nextval('evil.ran'); SELECT clock_timestamp() $$;
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql
    AS $$ SELECT pg_catalog.nextval('evil.ran') $$;
CREATE FUNCTION evil.eq(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE sql
    AS $$ SELECT pg_catalog.nextval('evil.ran') > 0 $$;
CREATE OPERATOR evil.= (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = evil.eq);
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.eq(VALUE, VALUE));
CREATE DOMAIN evil.int8 AS pg_catalog.int8 CHECK (evil.eq('', ''));
CREATE TEMP TABLE mail_events (id pg_catalog.int8);
CREATE TEMP TABLE event_commits (id pg_catalog.int8);
CREATE TEMP TABLE added (kind pg_catalog.text);
CREATE TEMP SEQUENCE event_commit_ids;
SET search_path = evil, pg_temp, public, pg_catalog;
"""


def test_names_of_the_caller_mean_nothing_to_the_triggers(
    db: psycopg.Connection, database: str
) -> None:
    """They run with the rights of the owner, in the session of whoever submits."""
    subscribe(db)
    with shop_login(database) as uri, psycopg.connect(uri, autocommit=True) as shop:
        db.execute(f"CREATE SCHEMA evil AUTHORIZATION {shop.info.user}".encode())
        shop.execute(EVIL.encode())
        (message,) = shop.execute(
            "SELECT pgmta.submit('s@a.example', ARRAY['r@b.example']::pg_catalog.text[], %s)",
            (CONTENT,),
        ).fetchone() or (0,)
        shop.execute("SELECT pgmta.cancel(%s)", (message,))
        assert kinds(db) == ["accepted", "cancelled"]
        assert fetch(db, "SELECT is_called FROM evil.ran") == (False,)
        db.execute("DROP SCHEMA evil CASCADE")
