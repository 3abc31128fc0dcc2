"""Reading: documents, filters, and the work of one call."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from pgmta_features.events.kinds import KINDS
from tests.features.events.event_log import Event, events, number, page, rows_of, send, subscribe
from tests.support.rows import attempt, column, fetch

GREYLISTED = {
    "event": "deferred", "code": 450, "enhanced": "4.7.1", "reply": "greylisted",
    "class": "greylisted", "attempt": 2, "tenant": "shop", "message_id_header": "<m@a.example>",
    "submitted_by": "key:shop", "ended_at": datetime(2026, 11, 2, 3, 4, 5, 60000, UTC),
    "metadata": json.dumps({"order": "7", "none": None, "_scope": "news"}),
}  # fmt: skip


def documents(found: list[Event]) -> list[dict[str, object]]:
    return [event.document or {} for event in found]


def test_a_document_has_what_the_log_has(db: psycopg.Connection) -> None:
    subscribe(db)
    attempt(db, 5, 1 << 60, **GREYLISTED)
    number(db)
    (found,) = events(db)
    assert found.document == {
        "id": found.id, "type": "mail.deferred", "time": "2026-11-02T03:04:05.060000Z",
        "message_id": "1152921504606846976", "recipient": "r@b.example", "sender": "s@a.example",
        "tenant": "shop", "message_id_header": "<m@a.example>", "submitted_by": "key:shop",
        "metadata": {"order": "7", "none": None}, "attempt": 2, "code": 450, "enhanced": "4.7.1",
        "reply": "greylisted", "class": "greylisted", "host": "mx.b.example:25",
    }  # fmt: skip


def test_a_page_has_events_and_entries_of_the_log_of_several_days(db: psycopg.Connection) -> None:
    subscribe(db)
    for days in (3, 0, 1):
        attempt(db, days, ended_at=datetime.now(UTC) - timedelta(days))
    message = send(db)
    number(db)
    for log in ("event_log", "mail_events"):
        db.execute(f"UPDATE {log} SET at = at + commit * interval '1 day'".encode())
    found = events(db)
    assert [event.row_id for event in found] == [3, 0, 1, None]
    assert [document.get("code") for document in documents(found)] == [450, 450, 450, None]
    assert documents(found)[3]["message_id"] == str(message)
    assert documents(found)[3]["recipients"] == ["r@b.example"]


def test_a_document_leaves_out_what_is_gone(db: psycopg.Connection) -> None:
    subscribe(db)
    message = send(db, "y@b.example", "x@b.example", metadata='{"order": "7"}', tenant="shop")
    number(db)
    (accepted,) = documents(events(db))
    assert accepted.pop("message_id_header")
    known = {
        "id": "1-1", "type": "mail.accepted", "time": accepted["time"], "sender": "s@a.example",
        "message_id": str(message), "recipients": ["x@b.example", "y@b.example"],
        "tenant": "shop", "submitted_by": "postgres", "metadata": {"order": "7"},
    }  # fmt: skip
    assert accepted == known
    db.execute("SELECT cancel(%s, 'sold out')", (message,))
    number(db)
    accepted, *cancelled = documents(events(db))  # the log has the rest now
    assert accepted | {"message_id_header": None} == known | {"message_id_header": None}
    assert {each["recipient"]: each["reason"] for each in cancelled} == {
        "x@b.example": "sold out",
        "y@b.example": "sold out",
    }
    db.execute("DELETE FROM attempts")
    gone = {key: known[key] for key in ("id", "type", "time", "message_id")}
    assert documents(events(db))[0] == gone


def test_filters(db: psycopg.Connection) -> None:
    subscribe(db)
    for place in range(20):
        tenant, login = ("shop", "bank")[place % 2], f"key:{place % 4}"
        event = "delivered" if place == 10 else "deferred"
        attempt(db, place, place, event=event, tenant=tenant, submitted_by=login)
    send(db, tenant="shop")
    number(db)

    def rows(**named: Any) -> list[int | None]:
        return [event.row_id for event in events(db, **named)]

    assert rows(kinds=["delivered", "bounced"]) == [10]
    assert rows(viewer="key:1") == [1, 5, 9, 13, 17]
    assert rows(tenant="bank") == list(range(1, 20, 2))
    assert len(events(db, tenant="shop")) == 11
    others = [place for place in range(0, 20, 2) if place != 10]
    assert rows(kinds=["deferred"], tenant="shop", most=3) == others


MANY = """
INSERT INTO attempts (ended_at, started_at, row_id, message_id, lease_token, attempt, code, event,
    sender, recipient, domain, worker, host, command, enhanced, reply)
SELECT now(), now(), n, n, 1, 1, 250, 'delivered', '', '', 'b.example', '', '', '', '', ''
FROM generate_series(1, 9000) AS n
"""


def test_a_call_that_finds_little_ends_and_says_how_far_it_came(db: psycopg.Connection) -> None:
    subscribe(db)
    for _ in range(3):  # commits of 9,000 events
        db.execute(MANY)
    attempt(db)
    number(db)
    places, after = [], None
    while rows := page(db, after, kinds=["deferred"]):
        after = rows[-1].cursor
        places.append((after.partition(".")[2], [row.kind for row in rows]))
    assert places == [("2.1000", [None]), ("3.2000", [None]), ("4.1", ["deferred"])]
    assert page(db, after) == []


def test_a_page_ends_at_a_megabyte_but_has_two_events(db: psycopg.Connection) -> None:
    subscribe(db)
    for place, size in enumerate((1, 700_000, 700_000, 1_500_000, 1, 1), 1):
        attempt(db, place, place, metadata=json.dumps({"order": "x" * size}))
    number(db)
    sizes, after = [], None
    while rows := page(db, after):
        after = rows[-1].cursor
        sizes.append(len(rows))
    assert sizes == [3, 2, 1]


SCANNED = """
SELECT relname FROM pg_stat_xact_user_tables WHERE seq_scan > 0 AND schemaname = 'pgmta'
"""


@pytest.mark.parametrize("filters", [{}, {"viewer": "key:1", "kinds": ["accepted", "held"]}])
def test_no_call_reads_a_whole_table(
    db: psycopg.Connection, database: str, filters: dict[str, Any]
) -> None:
    """Whatever the statistics say: they are of empty tables here."""
    subscribe(db)
    for place in range(50):
        attempt(db, place, place)
    held = rows_of(db, send(db))
    db.execute("SELECT queue_change_rows('hold', %s, 'me', '{\"reason\": \"x\"}')", (held,))
    number(db)
    with psycopg.connect(database) as reader:
        assert page(reader, **filters)
        fetch(reader, "SELECT events_end(), events_since(now())")
        assert set(column(reader, SCANNED)) <= {"event_history"}


def test_cursors_that_are_none(db: psycopg.Connection) -> None:
    history = fetch(db, "SELECT max(history) FROM event_history")[0]
    for bad in ("", "x", "1.2", f"{history}.0.99999999999", "1;2.3.4", "-1.2.3", "१.२.३"):
        with pytest.raises(errors.InvalidParameterValue, match="is no cursor of pgmta"):
            page(db, bad)
    for foreign in ("1.0.0", f"{history}.1.0"):
        with pytest.raises(psycopg.Error, match="does not have") as caught:
            page(db, foreign)
        assert caught.value.sqlstate == "PG409"


def test_events_expire_by_day(db: psycopg.Connection) -> None:
    """A reader that comes too late is told, and numbers go on after the last one has gone."""
    subscribe(db)
    attempt(db)
    number(db)
    (first,) = events(db)
    begin = fetch(db, "SELECT events_since('-infinity')")[0]
    for log in ("mail_events", "event_log"):
        today = fetch(db, "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")[0]
        db.execute(f"ALTER TABLE {log}_{today} RENAME TO {log}_20200101".encode())
    db.execute("SELECT events_keep()")
    dropped = fetch(
        db, "SELECT days_expire('mail_events', '7 days'), days_expire('event_log', '7 days')"
    )
    assert dropped == (1, 1)
    assert events(db) == []
    for log in ("mail_events", "event_log"):
        db.execute("SELECT days_make(%s, 0)", (log,))
    attempt(db)
    number(db)
    assert [e.cursor.partition(".")[2] for e in events(db, first.cursor)] == ["2.1"]
    with pytest.raises(psycopg.Error, match="have expired") as caught:
        page(db, begin)
    assert caught.value.sqlstate == "PG409"


def test_numbers_that_have_expired_among_others_hide_none(db: psycopg.Connection) -> None:
    """A transaction that was open over midnight has its number among those of the next day."""
    subscribe(db)
    for place in range(1, 9):
        attempt(db, place, place)
        number(db)
    times = column(db, "SELECT numbered_at FROM event_log ORDER BY number")
    db.execute("DELETE FROM event_log WHERE number IN (1, 2, 6)")

    def rows(instant: Any) -> list[int | None]:
        begin = fetch(db, "SELECT events_since(%s)", instant)[0]
        return [event.row_id for event in events(db, begin)]

    assert rows("-infinity") == [3, 4, 5, 7, 8]
    assert [len(rows(time)) for time in times] == [5, 5, 5, 4, 3, 2, 2, 1]
    assert rows("infinity") == []


def test_kinds_are_those_of_the_triggers(db: psycopg.Connection) -> None:
    constraint = (
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'attempts_event'"
    )
    logged = {
        word.strip("'{}") for word in fetch(db, constraint)[0].replace("::text", "").split("'")
    }
    ours = {"failed": "bounced", "deleted": "cancelled"}
    assert {ours.get(word, word) for word in logged if word.isalpha() and word.islower()} <= set(
        KINDS
    )
