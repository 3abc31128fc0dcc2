"""Calls of submit_mails(): repeated under one UUID, and in the transaction of any caller."""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta.postgres.link import Link
from pgmta.postgres.notify import CHANNEL
from pgmta.store.admin.migrate import migrate
from pgmta.store.admin.upkeep import Upkeep
from queued.upkeep.idempotency_keys import expire_keys
from tests.sql.test_mails import MAIL, stored
from tests.support.database import fresh_database
from tests.support.rows import column, fetch
from tests.support.waiting import until

MAILS = [MAIL, {**MAIL, "to": ["nobody"]}, {**MAIL, "headers": {"X-A": "b"}}]
RAW = b64encode(b"Date: x\r\nMessage-ID: <1@a.example>\r\n\r\nx\r\n").decode()
QUERY = "SELECT ids, problems FROM pgmta.submit_mails(%s, call => %s)"


def call(db: psycopg.Connection, number: UUID, mails: list[Any] = MAILS) -> tuple[Any, ...]:
    return fetch(db, QUERY, json.dumps(mails), number)


def count(db: psycopg.Connection) -> int:
    return int(fetch(db, "SELECT count(*) FROM pgmta.messages")[0])


def test_a_repetition_gets_the_answer_of_the_first(db: psycopg.Connection) -> None:
    number = uuid4()
    first = call(db, number)
    assert [each is None for each in first[0]] == [False, True, False]
    assert [problem["index"] for problem in first[1]] == [1]
    assert call(db, number) == first
    assert count(db) == 2
    assert call(db, number, [*MAILS[:2], {**MAILS[2], "headers": {"x-a": "b"}}][:2] + MAILS[2:])
    db.execute("DELETE FROM queue")
    assert call(db, number) == first  # they have left the queue
    assert call(db, uuid4())[0] != first[0]
    for mails in ([], MAILS[:2], [MAIL, *MAILS[1:], MAIL]):
        with pytest.raises(pg_errors.UniqueViolation, match="call: it was used for other mails"):
            call(db, number, mails)
    assert call(db, empty := uuid4(), []) == call(db, empty, []) == ([], None)


def test_other_contents_are_other_mails(db: psycopg.Connection) -> None:
    call, query = uuid4(), "SELECT ids FROM submit_mails(%s, %s, %s)"
    by_place = json.dumps([{"sender": "a@a.example", "recipients": ["b@b.example"], "content": 0}])
    raw = b64decode(RAW)
    ((first,),) = fetch(db, query, by_place, [raw], call)
    assert first
    assert fetch(db, query, by_place, [raw], call) == ([first],)
    for contents in ([raw + b"x"], [raw, b""], []):
        with pytest.raises(pg_errors.UniqueViolation, match="call: it was used for other mails"):
            db.execute(query, (by_place, contents, call))


def test_another_login_does_not_see_it(db: psycopg.Connection) -> None:
    call(db, number := uuid4())
    db.execute("SET SESSION AUTHORIZATION pgmta_submit")
    for mails in (MAILS, []):
        with pytest.raises(pg_errors.UniqueViolation, match="another login") as caught:
            call(db, number, mails)
        assert (caught.value.diag.column_name, caught.value.diag.message_detail) == ("call", None)
    call(db, uuid4())
    with pytest.raises(pg_errors.InsufficientPrivilege):
        db.execute("SELECT FROM pgmta.submit_calls")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_repetition_waits_for_an_open_first_one(
    database: str, db: psycopg.Connection, end: str
) -> None:
    number = uuid4()
    answers: list[tuple[Any, ...]] = []

    def repeat() -> None:
        with psycopg.connect(database) as second:
            answers.append(call(second, number))

    with psycopg.connect(database) as app:
        first = call(app, number)
        thread = threading.Thread(target=repeat)
        thread.start()
        waiting = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        until(lambda: db.execute(waiting, (app.info.backend_pid,)).rowcount)
        call(db, uuid4())  # no other call waits
        assert not answers
        getattr(app, end)()
        thread.join()
    assert (answers == [first]) is (end == "commit")
    assert count(db) == 4


def test_after_an_error_or_a_rollback_the_call_is_new(
    database: str, db: psycopg.Connection
) -> None:
    number = uuid4()
    with psycopg.connect(database) as app:
        app.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(pg_errors.ReadOnlySqlTransaction):
            call(app, number)
        app.rollback()
        with app.transaction(force_rollback=True):  # a savepoint
            call(app, number)
        second = call(app, number)
        assert call(app, number) == second
        app.commit()
    assert column(db, "SELECT id FROM messages ORDER BY id") == [second[0][0], second[0][2]]


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel)[2:], ids=str)
def test_an_old_snapshot_has_to_be_tried_again(
    database: str, db: psycopg.Connection, level: psycopg.IsolationLevel
) -> None:
    number = uuid4()
    with psycopg.connect(database) as app:
        app.isolation_level = level
        fetch(app, "SELECT count(*) FROM queue")
        first = call(db, number)
        with pytest.raises(pg_errors.SerializationFailure):
            call(app, number)
        app.rollback()
        assert call(app, number) == first
        call(app, uuid4())
        app.commit()
    assert count(db) == 4


async def test_a_call_is_kept_for_an_hour(database: str, db: psycopg.Connection) -> None:
    old, young = uuid4(), uuid4()
    first = call(db, old), call(db, young)
    db.execute(
        "UPDATE submit_calls SET called_at = now() - CASE call WHEN %s THEN interval '61 min'"
        " ELSE interval '59 min' END", (old,),
    )  # fmt: skip
    link = Link(database, "test")
    await expire_keys(Upkeep(link), "mx.example.org", 86400)
    await link.close()
    assert column(db, "SELECT call FROM submit_calls") == [young]
    assert call(db, young) == first[1]
    assert call(db, old)[0] != first[0][0]


def test_without_a_call_nothing_is_kept_of_it(db: psycopg.Connection) -> None:
    fetch(db, "SELECT ids FROM submit_mails(%s)", json.dumps(MAILS))
    assert column(db, "SELECT count(*) FROM submit_calls") == [0]


def test_wake_is_one_notification(database: str, db: psycopg.Connection) -> None:
    with psycopg.connect(database, autocommit=True) as worker:
        worker.execute(f"LISTEN {CHANNEL}".encode())
        for mails in ([MAIL], MAILS, MAILS[1:2], []):
            fetch(db, "SELECT submit_mails(%s, wake => true)", json.dumps(mails))
        fetch(db, "SELECT submit_mails(%s)", json.dumps(MAILS))
        db.execute(f"NOTIFY {CHANNEL}, 'end'".encode())
        heard = [each.payload for each in worker.notifies(timeout=10, stop_after=3)]
    assert heard == ["", "", "end"]
    with pytest.raises(pg_errors.InvalidParameterValue, match="wake: it is null"):
        db.execute("SELECT submit_mails('[]', wake => NULL)")


ATTACK = """
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE FUNCTION evil.caught() RETURNS text LANGUAGE plpgsql AS $$
    BEGIN RAISE 'caught as %', current_user; END $$;
CREATE FUNCTION evil.is_common(jsonb) RETURNS boolean RETURN evil.caught() IS NULL;
CREATE FUNCTION evil.text_in_list(jsonb) RETURNS jsonb RETURN to_jsonb(evil.caught());
CREATE FUNCTION evil.split_part(text, text, integer) RETURNS text RETURN evil.caught();
CREATE FUNCTION evil.jsonb_array_length(jsonb) RETURNS text RETURN evil.caught();
CREATE FUNCTION evil.same(jsonb, text) RETURNS jsonb RETURN to_jsonb(evil.caught());
CREATE OPERATOR evil.-> (LEFTARG = jsonb, RIGHTARG = text, FUNCTION = evil.same);
CREATE FUNCTION evil.equal(text, text) RETURNS boolean RETURN evil.caught() IS NULL;
CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal);
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA evil TO PUBLIC;
"""
SETTINGS = {
    "search_path": "evil, pg_temp, pg_catalog, pgmta", "standard_conforming_strings": "off",
    "transform_null_equals": "on", "array_nulls": "off", "bytea_output": "escape",
    "DateStyle": "SQL, DMY", "TimeZone": "Asia/Kolkata", "IntervalStyle": "sql_standard",
    "plan_cache_mode": "force_custom_plan", "work_mem": "64kB", "enable_seqscan": "off",
    "enable_hashagg": "off", "escape_string_warning": "off",
}  # fmt: skip


@pytest.fixture
def shop(server: str) -> Iterator[str]:
    """A database with objects of an attacker."""
    with fresh_database(server) as uri:
        migrate(uri)
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute(ATTACK.encode())
        yield uri


def test_the_caller_can_not_change_what_it_does(shop: str) -> None:
    """Whatever search_path, temporary objects and settings the session has."""
    mails = [
        {**MAIL, "to": ["Bob <bob@example.com>", "ann@example.com"], "metadata": {"a": "b"}},
        {**MAIL, "headers": {"X-A": "b"}, "send_at": "2035-02-01T09:30:00Z"},
        {"sender": "a@a.example", "recipients": ["b@b.example"], "content": RAW},
    ]
    texts = [json.dumps(mails), json.dumps(mails[:1])]
    with (
        psycopg.connect(shop, autocommit=True, options="-c search_path=pgmta") as owner,
        psycopg.connect(shop, autocommit=True) as app,
    ):
        for text in texts:
            owner.execute("SELECT submit_mails(%s)", (text,))
        usual = stored(owner)
        app.execute("SET SESSION AUTHORIZATION pgmta_submit")
        for name in ("submit_settings", "submit_calls", "messages", "queue", "idempotency_keys"):
            app.execute(f"CREATE TEMP TABLE {name} (hostname text)".encode())
        for name, value in SETTINGS.items():
            app.execute("SELECT set_config(%s, %s, false)", (name, value))
        for text in texts:
            ids, problems = fetch(app, QUERY, text, uuid4())
            assert (len(ids), problems) == (len(json.loads(text)), None)
        found = stored(owner)
        assert {row.pop("submitted_by") for row in found if "submitted_by" in row} == {
            "pgmta_submit"
        }
        for row in usual:
            row.pop("submitted_by", None)
        rows = [{k: v for k, v in r.items() if k != "message_id_header"} for r in (*found, *usual)]
        assert rows[: len(found)] == rows[len(found) :]
