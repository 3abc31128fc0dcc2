"""Mail that is not to be sent before a time: how it is stored, and that nothing makes it early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import errors as pg_errors

from pgmta import RawMail, SubmissionError, enqueue
from pgmta.action import Action
from pgmta.mail.metadata import deadline_of
from pgmta.postgres.link import Link
from pgmta.store.admin.upkeep import DatabaseClock
from pgmta.store.queue.arrivals import MIN_SCHEDULED_ID
from pgmta.store.queue.claim import Claims
from tests.sql.test_submit_values import MAIL
from tests.support.rows import column, fetch, message, row


def submit(db: psycopg.Connection, ahead: str, *names: str, **options: Any) -> int:
    """Submit mail for these people that is due in that time."""
    people = [f"{name}@b.example" for name in names or ("r",)]
    more = "".join(f", {name} => %({name})s" for name in options)
    statement = (
        "SELECT submit('s@a.example', %(people)s, %(mail)b,"
        f" send_at => now() + %(ahead)s::interval{more})"
    )
    values = {"people": people, "mail": MAIL, "ahead": ahead, **options}
    (number,) = db.execute(statement.encode(), values).fetchone() or (0,)
    return int(number)


def next_row(db: psycopg.Connection) -> int:
    return int(fetch(db, "SELECT last_value + is_called::integer FROM queue_ids")[0])


def test_a_scheduled_row_waits_apart_and_counts_from_its_time(db: psycopg.Connection) -> None:
    assert column(
        db, "SELECT start_value FROM pg_sequences WHERE sequencename = 'scheduled_ids'"
    ) == [MIN_SCHEDULED_ID]
    before = next_row(db)
    submit(db, "1 day", "a", "b")
    assert next_row(db) == before  # no worker is woken for them
    found = db.execute(
        "SELECT tableoid::regclass::text, status, ts = send_at, next_attempt = send_at,"
        " id >= %s FROM queue",
        (MIN_SCHEDULED_ID,),
    ).fetchall()
    assert found == [("queue_scheduled", "SCHEDULED", True, True, True)] * 2
    assert fetch(db, "SELECT received_at < now() FROM messages") == (True,)
    assert column(db, "SELECT schedule_due(10)") == [0]
    for ahead, near in (("1.9 s", True), ("-1 s", False)):
        db.execute("DELETE FROM queue")
        with db.transaction():  # now() stands still
            submit(db, ahead)
            assert fetch(
                db,
                "SELECT status, send_at IS NOT NULL, ts > now(),"
                " next_attempt > clock_timestamp() FROM queue",
            ) == ("QUEUED", near, near, near)
        assert next_row(db) == (before := before + 1)


def test_each_way_stores_a_scheduled_mail_alike(db: psycopg.Connection) -> None:
    send_at = datetime(2030, 1, 31, 9, 30, 0, 250000, tzinfo=UTC)
    deadline = send_at + timedelta(hours=1)
    mails = [
        RawMail("s@a.example", ["r@b.example"], MAIL, send_at=send_at, deadline=deadline),
        RawMail("s@a.example", ["plain@b.example"], MAIL),
        RawMail("s@a.example", ["past@b.example"], MAIL, send_at=datetime(2020, 1, 1, tzinfo=UTC)),
    ]
    for mail in mails:
        enqueue(db, mail)
    naive = send_at.replace(tzinfo=None)
    plain_mail = RawMail("", ["r@b.example"], MAIL)
    for bad in (replace(plain_mail, send_at=naive), replace(plain_mail, deadline=naive)):
        with pytest.raises(ValueError, match="no time zone"):
            enqueue(db, bad)
    for words, bad in {
        "send_at: .*10 years": replace(plain_mail, send_at=datetime(9999, 1, 1, tzinfo=UTC)),
        "deadline: .*not after": replace(plain_mail, send_at=send_at, deadline=send_at),
    }.items():
        with pytest.raises(SubmissionError, match=words):
            enqueue(db, bad)
    db.execute(
        "SELECT submit('s@a.example', '{r@b.example}', %b, send_at => %s, deadline => %s)",
        (MAIL, send_at, deadline),
    )
    found = db.execute(
        "SELECT status, ts, next_attempt, send_at, metadata::text FROM queue"
        " WHERE recipient = 'r@b.example'"
    ).fetchall()
    metadata = '{"_deadline": "2030-01-31T10:30:00.25Z"}'
    assert found[1] == ("SCHEDULED", send_at, send_at, send_at, metadata)
    assert found[0][:4] == found[1][:4]
    assert deadline_of(found[0][4]) == deadline_of(found[1][4]) == (deadline, "")
    others = db.execute(
        "SELECT recipient, status, ts <= now(), send_at FROM queue WHERE recipient <> 'r@b.example'"
        " ORDER BY 1"
    ).fetchall()
    assert others == [
        ("past@b.example", "QUEUED", True, None),
        ("plain@b.example", "QUEUED", True, None),
    ]


@pytest.mark.parametrize(
    ("deadline", "metadata", "reason"),
    [
        ("2 days", '{"_deadline": null}', "metadata has _deadline too"),
        ("1 day", "{}", "it is not after send_at"),
    ],
)
def test_a_deadline_that_does_not_fit_is_refused(
    db: psycopg.Connection, deadline: str, metadata: str, reason: str
) -> None:
    with pytest.raises(pg_errors.InvalidParameterValue, match=f"deadline: {reason}") as caught:
        db.execute(
            "SELECT submit('', '{r@b.example}', %b, send_at => now() + '1 day',"
            " deadline => now() + %s::interval, metadata => %s)",
            (MAIL, deadline, metadata),
        )
    assert caught.value.diag.column_name == "deadline"
    assert fetch(db, "SELECT count(*) FROM messages") == (0,)


def test_the_time_belongs_to_a_key(db: psycopg.Connection) -> None:
    query = (
        "SELECT submit('', '{r@b.example}', %b, send_at => %s::timestamptz, key => 'k',"
        " deadline => %s::timestamptz)"
    )
    given = ("2030-01-01 12:00+00", "2030-01-02 12:00+00")
    first = fetch(db, query, MAIL, *given)
    db.execute("SET TimeZone = 'Asia/Tokyo'")
    assert fetch(db, query, MAIL, *given) == first
    for other in (("2030-01-01 12:01+00", given[1]), (given[0], "2030-01-02 12:01+00")):
        with pytest.raises(pg_errors.UniqueViolation, match="another message"):
            fetch(db, query, MAIL, *other)


def test_the_state_is_scheduled_until_its_time(db: psycopg.Connection) -> None:
    number = submit(db, "1 day")
    (accepted,) = fetch(db, "SELECT received_at FROM messages")
    states = "SELECT state, s.next_attempt = q.send_at, at FROM status(%s) AS s, queue AS q"
    with db.transaction():  # now() stands still
        for ahead in ("1 day", "1.5 s"):
            db.execute(
                "UPDATE queue SET send_at = now() + %s::interval,"
                " next_attempt = now() + %s::interval",
                (ahead, ahead),
            )
            db.execute("SELECT schedule_due(10)")
            assert fetch(db, states, [number]) == ("scheduled", True, accepted)
        assert column(db, "SELECT status FROM queue") == ["QUEUED"]
    for status in ("QUEUED", "SCHEDULED"):  # no queued has seen it
        db.execute(
            "UPDATE queue SET status = %s, send_at = now() - interval '1 s',"
            " next_attempt = now() - interval '1 s', ts = now() - interval '1 s'",
            (status,),
        )
        found = fetch(db, "SELECT state, at = q.ts FROM message_status, queue AS q")
        assert found == ("queued", True)


def test_overviews_have_scheduled_rows(db: psycopg.Connection) -> None:
    submit(db, "1 day", "a", "b")
    assert fetch(
        db, "SELECT rows, next_due > now(), due_now FROM queue_overview WHERE status = 'SCHEDULED'"
    ) == (2, True, 0)
    assert fetch(
        db, "SELECT rows, scheduled, queued, next_attempt > now() FROM queue_by_domain"
    ) == (2, 2, 0, True)


def change(action: Action, details: str = "{}") -> Callable[[psycopg.Connection], object]:
    """An action by the function that queuectl, workers and the functions of SQL share."""
    return lambda db: db.execute(
        "SELECT queue_change_rows(%s, ARRAY(SELECT id FROM queue), 'me', %s)", (action, details)
    )


def plain(assignments: str) -> Callable[[psycopg.Connection], object]:
    """A plain UPDATE."""
    return lambda db: db.execute(f"UPDATE queue SET {assignments}".encode())


MOVES: dict[str, Callable[[psycopg.Connection], object]] = {
    "hold": change(Action.HOLD, '{"reason": "x"}'),
    "quarantine": change(Action.QUARANTINE, '{"reason": "x", "quarantine": "q"}'),
    "release": change(Action.RELEASE),
    "retry": change(Action.RETRY),
    "bounce": change(Action.BOUNCE, '{"reason": "x"}'),
    "delete": change(Action.DELETE),
    "set": change(Action.SET, '{"priority": 0}'),
    "queue_hold": lambda db: db.execute("SELECT queue_hold('true', 'x')"),
    "queue_release": lambda db: db.execute("SELECT queue_release('true')"),
    "queue_retry": lambda db: db.execute("SELECT queue_retry('true')"),
    "update hold": plain("status = 'HOLD'"),
    "update queued": plain("status = 'QUEUED'"),
    "update due": plain("next_attempt = now() - interval '1 h'"),
    "update queued and due": plain("status = 'QUEUED', next_attempt = now() - interval '1 h'"),
    "update deferred": plain("status = 'DEFERRED', next_attempt = now()"),
    "duty": lambda db: db.execute("SELECT schedule_due(10)"),
}
AHEAD = {"far": "1 day", "near": "1.5 s"}


@settings(max_examples=60)
@given(st.sampled_from(sorted(AHEAD)), st.lists(st.sampled_from(sorted(MOVES)), max_size=8))
def test_no_change_makes_a_row_early(
    template_db: psycopg.Connection, distance: str, moves: list[str]
) -> None:
    """All in one transaction, so that now() stands still."""
    db = template_db
    with db.transaction(force_rollback=True):
        message(db, 1)
        row_id = row(db, 1, status="SCHEDULED", send_at="infinity")
        db.execute(
            "UPDATE queue SET send_at = now() + %s::interval, next_attempt = now() + %s::interval",
            (AHEAD[distance], AHEAD[distance]),
        )
        for move in moves:
            (before,) = fetch(db, "SELECT status FROM queue")
            MOVES[move](db)
            found = fetch(db, "SELECT id, status, next_attempt >= send_at FROM queue")
            assert found[0] == row_id
            _, status, in_time = found
            if status in ("QUEUED", "DEFERRED"):
                assert in_time, (moves, move)
            if before in ("HOLD", "REPORT", "DELETE") and status not in (before, "HOLD", "REPORT"):
                assert status in ("SCHEDULED", "DELETE"), (moves, move)
            if "release" in move and before == "HOLD":
                assert (status, in_time) == ("SCHEDULED", True)
            if move == "duty" and before == "SCHEDULED":
                assert status == ("QUEUED" if distance == "near" else "SCHEDULED")


def test_a_release_of_what_is_over_is_due(db: psycopg.Connection) -> None:
    message(db, 1)
    row(db, 1, status="HOLD", send_at="2020-01-01", next_attempt="2030-01-01")
    db.execute("UPDATE queue SET status = 'QUEUED'")
    assert fetch(db, "SELECT status, next_attempt <= now() FROM queue") == ("QUEUED", True)


async def test_no_claim_takes_a_row_before_its_time(db: psycopg.Connection, link: Link) -> None:
    for ahead in ("1 day", "1.9 s", "1.9 s"):
        submit(db, ahead)
    claims = Claims(link, "w", 60)
    for _ in range(2):
        items = (await claims.claim(10, [])).items
        assert [item.ts for item in items if item.ts > datetime.now(UTC)] == []
        assert db.execute("SELECT queue_retry('true')").fetchone() == (0,)


async def test_a_step_back_of_the_clock_leaves_the_time(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    """The stored instants are an hour late: PostgreSQL sees the same after a step back."""
    message(db, 1)
    row(db, 1, due=3600)
    db.execute("UPDATE queue SET send_at = next_attempt")
    db.execute("UPDATE database_clock SET seen_at = now() + interval '1 h'")
    assert (await DatabaseClock(link, 30, 60).look()).back is not None
    assert fetch(db, "SELECT next_attempt = send_at FROM queue") == (True,)


def test_cancel_removes_what_is_scheduled(db: psycopg.Connection) -> None:
    number = submit(db, "1 day", "a", "b")
    assert fetch(db, "SELECT cancel(%s)", number) == (2,)
    assert column(db, "SELECT state FROM status(%s)", [number]) == ["cancelled"] * 2


def test_the_time_has_to_be_finite_and_near(db: psycopg.Connection) -> None:
    with pytest.raises(pg_errors.InvalidParameterValue, match="over 10 years ahead") as caught:
        submit(db, "10 years 1 day")
    assert caught.value.diag.column_name == "send_at"
    submit(db, "9 years 364 days")
