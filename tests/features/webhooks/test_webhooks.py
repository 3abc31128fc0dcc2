"""Endpoints in PostgreSQL: whose they are, and what a process reads for them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.features.webhooks.conftest import Add
from tests.support.rows import column, fetch
from tests.support.system import System
from tests.support.waiting import until

SUBMIT = """
SELECT pgmta.submit(
    'a@b.example', ARRAY[%s], convert_to(E'Subject: x\r\n\r\nx\r\n', 'UTF8'), tenant => %s)
"""


def number(db: psycopg.Connection) -> None:
    """Give the events so far their numbers."""
    db.execute("SELECT pgmta.events_number()")


def put(db: psycopg.Connection, *recipients: str, tenant: str = "") -> None:
    for each in recipients:
        db.execute(SUBMIT, (each, tenant))
    number(db)


def lease(db: psycopg.Connection, worker: str = "me") -> None:
    db.execute("UPDATE pgmta.webhooks SET leased_by = %s", (worker,))


def batch(db: psycopg.Connection, endpoint: int, *, most: int = 100, revision: int = 1,
          worker: str = "me", reached: str | None = None) -> list[Any]:  # fmt: skip
    return db.execute(
        "SELECT * FROM pgmta.webhook_batch(%s, %s, %s, %s, %s, %s)",
        (endpoint, revision, worker, most, reached, reached is not None),
    ).fetchall()


def test_a_batch_is_returned_again_as_it_was_until_it_is_noted(
    db: psycopg.Connection, add: Add
) -> None:
    endpoint = add("https://shop.example/")
    lease(db)
    put(db, "1@c.example", "2@c.example")
    first = batch(db, endpoint)
    put(db, "3@c.example")
    assert batch(db, endpoint) == first
    assert batch(db, endpoint, worker="another") == []
    (third,) = batch(db, endpoint, reached=first[-1][0])
    assert batch(db, endpoint, reached=third[0]) == []
    assert fetch(db, "SELECT state, posted_at IS NOT NULL FROM pgmta.webhooks") == ("active", True)


def test_a_batch_that_ends_with_an_event_of_another_kind_is_returned_again_as_it_was(
    db: psycopg.Connection, add: Add
) -> None:
    endpoint = add("https://shop.example/", kinds=["accepted"])
    lease(db)
    put(db, "1@c.example")
    db.execute("SELECT pgmta.cancel(1)")
    number(db)
    first, place = batch(db, endpoint)
    assert place[1] is None
    put(db, "2@c.example", "3@c.example")
    assert batch(db, endpoint) == batch(db, endpoint) == [first]
    assert [row[1] for row in batch(db, endpoint, reached=first[0])] == ["3-1", "4-1"]


def test_what_was_begun_before_a_change_changes_nothing(db: psycopg.Connection, add: Add) -> None:
    endpoint = add("https://shop.example/")
    lease(db)
    put(db, "1@c.example", "2@c.example")
    first = batch(db, endpoint)
    db.execute("SELECT pgmta.webhook_replay(%s, since => '-infinity')", (endpoint,))
    assert batch(db, endpoint, reached=first[-1][0]) == []
    assert batch(db, endpoint, revision=2) == first


def test_events_that_have_expired_do_not_stop_an_endpoint(db: psycopg.Connection, add: Add) -> None:
    endpoint = add("https://shop.example/")
    lease(db)
    put(db, "1@c.example", "2@c.example")
    db.execute("UPDATE pgmta.event_history SET last = 2")
    db.execute("DELETE FROM pgmta.event_log WHERE number = 1")
    assert batch(db, endpoint) == []
    assert [row[1] for row in batch(db, endpoint)] == ["2-1"]


def test_an_owner_gets_one_mail_a_day(db: psycopg.Connection, add: Add) -> None:
    endpoint = add("https://shop.example/", owner="own@d.example")
    for sent, passed in (1, "0"), (1, "23 hours"), (2, "25 hours"):
        db.execute("SELECT pgmta.webhook_enable(%s, true)", (endpoint,))
        db.execute(
            "UPDATE pgmta.webhooks SET leased_by = 'me', noticed_at = noticed_at - %s::interval",
            (passed,),
        )
        db.execute(
            "SELECT pgmta.webhook_suspend(id, revision, 'me', 'gone', 'a@b.example', 'Subject: x')"
            " FROM pgmta.webhooks"
        )
        assert column(db, "SELECT recipient FROM pgmta.queue") == ["own@d.example"] * sent


def test_an_endpoint_of_a_tenant_gets_its_events_alone(db: psycopg.Connection, add: Add) -> None:
    acme = add("https://acme.example/", tenant="acme")
    other = add("https://other.example/", tenant="other")
    with pytest.raises(errors.UniqueViolation):
        add("https://acme.example/", tenant="acme")
    viewed = add("https://viewed.example/")
    db.execute("UPDATE pgmta.webhooks SET viewer = 'key:shop' WHERE id = %s", (viewed,))
    lease(db)
    put(db, "1@c.example", tenant="acme")
    put(db, "2@c.example", tenant="other")
    put(db, "3@c.example")
    assert [row[1] for row in batch(db, acme) if row[1]] == ["1-1"]
    assert [row[1] for row in batch(db, other) if row[1]] == ["2-1"]
    assert [row[1] for row in batch(db, viewed) if row[1]] == []
    with pytest.raises(psycopg.Error, match="no event"):
        db.execute("SELECT pgmta.webhook_replay(%s, event_ids => '{2-1}')", (acme,))


def test_the_last_endpoint_ends_the_subscription(db: psycopg.Connection, add: Add) -> None:
    triggers = "SELECT tgname FROM pg_trigger WHERE tgname = 'attempts_events'"
    first, second = add("https://a.example/", "a"), add("https://b.example/", "b")
    db.execute("SELECT pgmta.webhook_remove(%s)", (first,))
    assert column(db, triggers)
    db.execute("SELECT pgmta.webhook_remove(%s)", (second,))
    assert not column(db, triggers)
    assert column(db, "SELECT action FROM pgmta.audit ORDER BY id") == [
        "webhook add", "webhook add", "webhook remove", "webhook remove",
    ]  # fmt: skip


def test_a_replay_finds_an_event_by_its_id(db: psycopg.Connection, add: Add) -> None:
    endpoint = add("https://shop.example/")
    lease(db)
    put(db, *(f"{n}@c.example" for n in range(5)))
    (second,) = (row for row in batch(db, endpoint) if row[1] == "2-1")
    replay = "SELECT pgmta.webhook_replay(%s, event_ids => %s)"
    for unknown in ("9-1", "2-9", "x", ""):
        with pytest.raises(psycopg.Error, match="no event"):
            db.execute(replay, (endpoint, [unknown]))
    db.execute(replay, (endpoint, ["2-1"]))
    replays = "SELECT * FROM pgmta.webhook_replays(%s, 'me', 10)"
    assert db.execute(replays, (endpoint,)).fetchall() == [("2-1", second[3])]


TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgname = 'attempts_events'"


def test_who_adds_one_waits_for_who_removes_the_last_one(
    db: psycopg.Connection, database: str, add: Add
) -> None:
    endpoint = add("https://shop.example/", name="old")
    with psycopg.connect(database) as other:
        other.execute("SELECT pgmta.webhook_remove(%s)", (endpoint,))
        with pytest.raises(errors.LockNotAvailable):
            add("https://shop.example/", name="new")
    add("https://shop.example/", name="new")
    assert column(db, "SELECT name FROM pgmta.event_subscriptions") == ["webhooks"]
    assert fetch(db, TRIGGERS) == (1,)


def test_endpoints_come_and_go_in_read_committed_only(
    db: psycopg.Connection, database: str, add: Add
) -> None:
    endpoint = add("https://shop.example/")
    with psycopg.connect(database) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for call in (f"webhook_remove({endpoint})",
                     "webhook_add('x', 'https://x', NULL, '{}', 'file:x', NULL, 1)",
                     ):  # fmt: skip
            with pytest.raises(errors.ObjectNotInPrerequisiteState, match="READ COMMITTED"):
                other.execute(f"SELECT pgmta.{call}".encode())
            other.rollback()


def test_webhooks_keep_their_subscription(db: psycopg.Connection, add: Add) -> None:
    endpoint = add("https://shop.example/")
    with pytest.raises(errors.ObjectInUse, match="there are webhooks"):
        db.execute("SELECT pgmta.events_unsubscribe('webhooks')")
    assert fetch(db, TRIGGERS) == (1,)
    db.execute("SELECT pgmta.webhook_remove(%s)", (endpoint,))
    assert fetch(db, TRIGGERS) == (0,)


def test_what_was_set_aside_is_removed_when_it_has_expired(
    db: psycopg.Connection, add: Add, system: System
) -> None:
    insert = (
        "INSERT INTO pgmta.webhook_failures (webhook_id, event_id, kind, after, reason, failed_at)"
        " SELECT %s, n, 'accepted', '', '', now() - n * '1 day'::interval"
        " FROM generate_series(1, 2500) AS n"
    )
    db.execute(insert, (add("https://shop.example/"),))
    system.queued(system.hop())
    until(lambda: fetch(db, "SELECT max(event_id) FROM pgmta.webhook_failures") == ("6",))
