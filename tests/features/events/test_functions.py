"""A function of an application gets each event exactly once, with the application's rights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from pgmta.postgres.operator import connected
from pgmta.store.admin.examination import TIME_LIMITS, Examination
from pgmta_features.events.consumers.function_caller import BEGIN
from pgmta_features.events.doctor_check import checks
from tests.features.events.event_log import events, number, send
from tests.support.nexthop import at
from tests.support.queuectl import queuectl
from tests.support.rows import attempt, column, fetch
from tests.support.shop_login import shop_login
from tests.support.system import System
from tests.support.waiting import PATIENCE, SLACK, until

# What runs later than the function, at its commit, notes as whom it does.
SHOP = """
CREATE TABLE shop.got (number bigserial, id text, type text);
CREATE TABLE shop.bad (recipient text);
CREATE TABLE shop.who (role text);
CREATE FUNCTION shop.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO shop.who SELECT unnest(ARRAY[session_user, current_user]);
    RETURN NULL;
END $$;
CREATE FUNCTION shop.noted() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO shop.who SELECT unnest(ARRAY[session_user, current_user]);
    RETURN true;
END $$;
CREATE CONSTRAINT TRIGGER note AFTER INSERT ON shop.got DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION shop.note();
CREATE FUNCTION shop.on_mail(events jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    held CONSTANT text := 'held' || clock_timestamp();
BEGIN
    IF EXISTS (SELECT FROM jsonb_array_elements(events) AS e
            JOIN shop.bad AS b ON b.recipient = e ->> 'recipient') THEN
        RAISE EXCEPTION 'no such order';
    END IF;
    INSERT INTO shop.got (id, type) SELECT e ->> 'id', e ->> 'type'
    FROM jsonb_array_elements(events) AS e;
    EXECUTE format('DECLARE %I CURSOR WITH HOLD FOR SELECT shop.noted()', held);
END $$;
"""


@pytest.fixture
def shop(db: psycopg.Connection, database: str) -> Iterator[str]:
    """URI of an application with a function that is called with events."""
    with shop_login(database) as uri:
        login = str(conninfo_to_dict(uri)["user"])
        db.execute(f"CREATE SCHEMA shop AUTHORIZATION {login}".encode())
        with psycopg.connect(uri, autocommit=True) as application:
            application.execute(SHOP.encode())
        db.execute("SELECT events_call('shop.on_mail')")
        yield uri
        db.execute("DROP SCHEMA shop CASCADE")


def got(db: psycopg.Connection) -> list[str]:
    return column(db, "SELECT id FROM shop.got ORDER BY number")


def kinds(db: psycopg.Connection) -> list[str | None]:
    return [event.kind for event in events(db)]


def test_each_event_once_with_the_rights_of_the_application(
    db: psycopg.Connection, shop: str, system: System, config: Path
) -> None:
    system.queued(system.hop(at("rcpt", "no@", times=1)))
    for place in range(5):
        send(db, f"r{place}@b.example", "no@b.example")
    until(lambda: len(kinds(db)) >= 15)
    until(lambda: len(got(db)) >= len(kinds(db)))
    assert got(db) == [event.id for event in events(db)]
    assert set(column(db, "SELECT role FROM shop.who")) == {conninfo_to_dict(shop)["user"]}
    listed = queuectl(config, "events", "list").output
    assert "shop.on_mail" in listed


@pytest.mark.slow
def test_an_event_that_always_fails_is_named_and_stops_no_other(
    db: psycopg.Connection, shop: str, system: System, config: Path
) -> None:
    db.execute("INSERT INTO shop.bad VALUES ('bad@b.example')")
    for place in range(20):
        attempt(db, place, place, recipient="bad@b.example" if place == 7 else "r@b.example")
    system.queued(system.hop())
    until(lambda: len(got(db)) == 19, PATIENCE + 20)
    number(db)
    (bad,) = column(db, "SELECT commit || '-' || last FROM event_retries")
    assert {*got(db), bad} == {event.id for event in events(db)}
    listed = queuectl(config, "events", "list").output
    assert bad in listed
    assert "no such order" in listed
    tries = "SELECT tries FROM event_retries"
    db.execute("UPDATE event_retries SET next_try = now()")
    attempt(db, 30, 30)
    until(lambda: fetch(db, tries) == (1,) and len(got(db)) == 20)
    db.execute("DELETE FROM shop.bad")
    assert queuectl(config, "events", "function", "shop.on_mail").exit_code == 0
    until(lambda: len(got(db)) == 21)
    assert got(db)[-1] == bad
    assert column(db, tries) == []


@pytest.mark.slow
def test_a_function_that_is_missing_loses_nothing(
    db: psycopg.Connection, shop: str, system: System
) -> None:
    db.execute("ALTER FUNCTION shop.on_mail(jsonb) RENAME TO away")
    for place in range(5):
        attempt(db, place, place)
    system.queued(system.hop())
    failures = "SELECT failures FROM application_functions"
    until(lambda: fetch(db, failures)[0] >= 2)
    (error,) = fetch(db, "SELECT error FROM application_functions")
    assert "shop.on_mail(jsonb) does not exist" in error
    db.execute("ALTER FUNCTION shop.away(jsonb) RENAME TO on_mail")
    until(lambda: len(got(db)) == 5)
    assert fetch(db, "SELECT failures, error FROM application_functions") == (0, None)


def test_the_cursor_moves_with_the_transaction_of_the_application(
    db: psycopg.Connection, shop: str
) -> None:
    """A program may take them itself; of two that do, one gets them."""
    attempt(db)
    number(db)
    take = "SELECT pgmta.events_take('shop.on_mail')"
    with psycopg.connect(shop) as one, psycopg.connect(shop) as other:
        ((first,),) = one.execute(take.encode()).fetchall()
        assert [each["id"] for each in first] == [event.id for event in events(db)]
        assert other.execute(take.encode()).fetchall() == [(None,)]
        one.rollback()
        other.rollback()
        assert other.execute(take.encode()).fetchall() == [(first,)]
        other.commit()
        assert one.execute(take.encode()).fetchall() == [(None,)]


async def test_a_function_that_takes_nothing_is_named(
    db: psycopg.Connection, database: str, shop: str
) -> None:
    """Its call may never end, and then no failure is noted."""

    async def found() -> list[str]:
        async with connected(database, TIME_LIMITS) as link:
            check = (await checks(Examination(link)))["events"]
            return [each.finding async for each in check() if "has not taken" in each.finding]

    attempt(db)
    number(db)
    assert await found() == []
    db.execute("UPDATE event_log SET numbered_at = now() - interval '2 minutes'")
    assert await found() == ["the function shop.on_mail has not taken an event of 2m ago"]
    with psycopg.connect(shop, autocommit=True) as application:
        application.execute("SELECT pgmta.events_take('shop.on_mail')")
    assert await found() == []


def test_a_retry_that_was_not_tried_is_not_blamed(db: psycopg.Connection, shop: str) -> None:
    """It became due while the call ran that failed."""
    db.execute(
        "INSERT INTO event_retries (name, commit, at, place, last, reason)"
        " VALUES ('shop.on_mail', 1, now(), 0, 1, 'x')"
    )
    failed = """SELECT event_function_failed('shop.on_mail', 'P0001', 'no such order', false,
        (SELECT next_try FROM event_retries) + %s::interval)"""
    assert [fetch(db, failed, offset)[0] for offset in ("-1 second", "0")] == [1, 0]
    assert fetch(db, "SELECT tries FROM event_retries") == (1,)


def test_failures_in_a_row_have_the_time_of_the_first(db: psycopg.Connection, shop: str) -> None:
    failed = "SELECT event_function_failed('shop.on_mail', '42501', 'no right', false, now())"
    since = "SELECT failed_at FROM application_functions"
    assert fetch(db, failed) == (1,)
    first = fetch(db, since)
    assert fetch(db, failed) == (2,)
    assert fetch(db, since) == first


STUBBORN = """
CREATE FUNCTION shop.stubborn(jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        BEGIN
            PERFORM pg_sleep(3600);
        EXCEPTION WHEN query_canceled THEN
            NULL;
        END;
    END LOOP;
END $$
"""


def test_a_function_that_catches_cancels_ends_with_its_client(
    db: psycopg.Connection, shop: str
) -> None:
    application = psycopg.connect(shop, autocommit=True)
    application.execute(STUBBORN.encode())
    application.execute("BEGIN")
    application.execute(BEGIN)
    pid = application.info.backend_pid
    application.pgconn.send_query(b"SELECT shop.stubborn('[]')")
    sleeps = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
    until(lambda: fetch(db, sleeps, pid) == ("PgSleep",))
    db.execute("SELECT pg_cancel_backend(%s)", (pid,))
    application.pgconn.finish()
    until(lambda: db.execute(sleeps.encode(), (pid,)).fetchall() == [])


def test_who_may_not(db: psycopg.Connection, database: str, shop: str) -> None:
    login = str(conninfo_to_dict(shop)["user"])
    with shop_login(database) as uri, psycopg.connect(uri, autocommit=True) as other:
        with pytest.raises(errors.UndefinedObject, match="no subscription"):
            other.execute("SELECT pgmta.events_take('shop.on_mail')")
        name = str(conninfo_to_dict(uri)["user"])
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="may not call it"):
            db.execute("SELECT events_call('shop.on_mail', %s)", (name,))
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="has the rights of pgmta"):
        db.execute("SELECT events_call('shop.on_mail', session_user::text)")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="did you mean shop.on_mail"):
        db.execute("SELECT events_call('shop.on_mial')")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=f"did you mean {login}"):
        db.execute("SELECT events_call('shop.on_mail', %s)", (f"{login}x",))
    db.execute(f"REVOKE pgmta_submit FROM {login}".encode())
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="GRANT pgmta_submit"):
        db.execute("SELECT events_call('shop.on_mail')")


@pytest.mark.slow
def test_a_slow_function_has_a_time_limit_and_delays_no_other(
    db: psycopg.Connection, shop: str, system: System, config: Path
) -> None:
    with psycopg.connect(shop, autocommit=True) as application:
        application.execute(
            "CREATE FUNCTION shop.slow(jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(3600)'"
        )
        application.execute(STUBBORN.encode())
    db.execute("SELECT events_call('shop.slow'), events_call('shop.stubborn')")
    attempt(db)
    system.queued(system.hop())
    began = time.monotonic()
    until(lambda: len(got(db)) == 1)
    assert time.monotonic() - began < 2 + SLACK
    error = "SELECT error FROM application_functions WHERE name = %s"
    until(lambda: "statement timeout" in (fetch(db, error, "shop.slow")[0] or ""), PATIENCE + 15)
    until(lambda: "no answer" in (fetch(db, error, "shop.stubborn")[0] or ""), PATIENCE + 30)
    assert "shop.stubborn has failed" in queuectl(config, "doctor", "--no-network").output
