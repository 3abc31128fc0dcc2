"""Rows with `once` whose lease ran out: one that had begun is never sent again, others are free."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.states import Status
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.expired_leases import FinalLeases
from pgmta.store.queue.lease import RowLeases
from queued.upkeep import final_leases
from queued.upkeep.final_leases import FinalLeaseDuty
from tests.support.rows import column, fetch, message, refuse_entries, row

POLICIES = ("hold", "remove", "bounce")
UNCERTAIN = "outcome unknown: a release may send a second copy"
LOST = {"lease": -1, "lease_token": 7, "lease_owner": "dead", "attempts": 2, "once": True,
        "begun": 7}  # fmt: skip


@pytest.fixture
async def link(database: str) -> AsyncIterator[Link]:
    link = Link(database, "test")
    yield link
    await link.close()


def lost(db: psycopg.Connection, **columns: Any) -> int:
    """A row of a new message, whose worker has died."""
    (number,) = fetch(db, "SELECT coalesce(max(id), 0) + 1 FROM messages")
    values = {**LOST, "status": "SENDING", **columns}
    row_id = row(db, message(db, number), **values)
    db.execute("UPDATE queue SET lease_since = now() - interval '1 h' WHERE id = %s", (row_id,))
    return row_id


async def test_every_lost_row_is_logged_and_held_or_removed(
    db: psycopg.Connection, link: Link
) -> None:
    expected: dict[int, tuple[Any, ...] | None] = {}
    for status, on_failed, once in itertools.product(Status, POLICIES, (True, False)):
        held: dict[str, Any] = {}
        if status is Status.HOLD:
            held = {"hold_reason": "mine", "held_by": "me", "hold_until": "2000-01-01"}
        row_id = lost(db, status=status, on_failed=on_failed, once=once, **held,
                      send_at="2000-01-01")  # fmt: skip
        # the claims' rows, those of requests, and those that wait for their time before
        if not once or status in (Status.DELETE, Status.SCHEDULED):
            expected[row_id] = (status, 7, *(held.get(key) for key in ("hold_reason", "held_by")))
        elif status is Status.HOLD:
            expected[row_id] = ("HOLD", None, f"{UNCERTAIN}; mine", "me")
        else:
            held_now = ("HOLD", None, UNCERTAIN, "upkeep")
            goes = on_failed == "remove" and status is not Status.REPORT  # an operator bounced it
            expected[row_id] = None if goes else held_now
    kept = [row(db, 1, once=True), row(db, 1, once=True, lease=60, status="SENDING")]
    leases = FinalLeases(link, "upkeep")
    last, number, ids = await leases.next(0, 100)
    assert (last, number) == (kept[1], 20)
    assert await leases.settle([*ids, *kept]) == (15, 0)
    found = {
        each[0]: each[1:]
        for each in db.execute("SELECT id, status, lease_token, hold_reason, held_by FROM queue")
    }
    assert {row_id: found.get(row_id) for row_id in expected} == expected
    assert column(db, "SELECT id FROM queue WHERE hold_until IS NULL AND hold_reason LIKE %s"
                  " ORDER BY id", f"{UNCERTAIN}%") == sorted(
        row_id for row_id, each in expected.items() if each and each[2] != "mine" and each[2]
    )  # fmt: skip
    logged = db.execute(
        "SELECT row_id, event, lease_token, attempt, worker, reply,"
        " started_at < now() - interval '59 min' FROM attempts ORDER BY 1"
    )
    reply = "lease ran out: the worker died or lost the database"
    assert logged.fetchall() == [
        (row_id, "unknown", 7, 2, "dead", reply, True) for row_id in sorted(ids)
    ]
    gone = {row_id for row_id, each in expected.items() if each is None}
    assert len(gone) == 3
    assert len(column(db, "SELECT id FROM messages")) == len(expected) - len(gone)
    # an operator's release is his word: a second copy, perhaps, and the view says so
    first = min(row_id for row_id, each in expected.items() if each and each[2] == UNCERTAIN)
    (message_id,) = fetch(db, "SELECT message_id FROM queue WHERE id = %s", first)
    assert column(db, "SELECT message_id FROM duplicates") == []
    fetch(db, "SELECT queue_release(%s)", f"id = {first}")
    items = (await Claims(link, "w", 60).claim(99, [])).items
    assert [item.attempts for item in items if item.id == first] == [3]
    assert await RowLeases(link, "w", 60).mark_begun([item for item in items if item.id == first])
    db.execute("UPDATE queue SET lease_until = now() - interval '1 s' WHERE id = %s", (first,))
    assert await leases.settle([first]) == (1, 0)
    assert column(db, "SELECT message_id FROM duplicates") == [message_id]


async def test_rows_that_had_not_begun_are_free_again(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    """A row may begin under a lease of ours that lasts, and not while another has it locked."""
    ids = [row(db, message(db, number), once=True) for number in range(1, 8)]
    begun, ran_out, taken, locked, held, waits, bounced = ids
    items = (await Claims(link, "w", 60).claim(99, [])).items
    assert [item.id for item in items] == ids
    end = "UPDATE queue SET lease_until = now() - interval '1 s'"
    db.execute(f"{end} WHERE id = %s".encode(), (ran_out,))
    db.execute("UPDATE queue SET lease_token = nextval('lease_tokens') WHERE id = %s", (taken,))
    db.execute("UPDATE queue SET status = 'HOLD', hold_reason = 'mine' WHERE id = %s", (held,))
    db.execute("UPDATE queue SET status = 'REPORT', hold_reason = 'mine' WHERE id = %s", (bounced,))
    leases = RowLeases(link, "w", 60)
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM queue WHERE id = %s FOR UPDATE", (locked,))
        assert await leases.mark_begun([item for item in items if item.id != waits]) == {begun}
    db.execute(end.encode())
    assert await FinalLeases(link, "upkeep").settle(ids) == (1, 6)
    found = db.execute(
        "SELECT id, status, attempts, lease_token, hold_reason FROM queue ORDER BY id"
    )
    free = {
        ran_out: "QUEUED",
        taken: "QUEUED",
        locked: "QUEUED",
        waits: "QUEUED",
        bounced: "REPORT",
    }
    assert [tuple(each) for each in found] == [
        (begun, "HOLD", 1, None, UNCERTAIN),
        *((each, free.get(each, "HOLD"), 0, None, "mine" if each in (held, bounced) else None)
          for each in ids[1:]),
    ]  # fmt: skip
    assert column(db, "SELECT row_id FROM attempts") == [begun]
    again = (await Claims(link, "heir", 60).claim(99, [])).items
    assert {item.id for item in again} == {ran_out, taken, locked, waits}
    assert await leases.mark_begun(items) == set()  # the former worker wakes, and sends nothing
    assert await leases.mark_begun(again) == {item.id for item in again}


async def test_a_row_that_cannot_be_logged_is_held_and_a_locked_one_is_left(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    refuse_entries(db)
    names = ("x1", "y", "locked", "x2")
    ids = [lost(db, recipient=f"{name}@b.example", on_failed="remove") for name in names]
    leases = FinalLeases(link, "upkeep")
    with psycopg.connect(database) as other, capture_logs() as logs:
        other.execute("SELECT FROM queue WHERE id = %s FOR UPDATE", (ids[2],))
        assert await leases.settle(ids) == (3, 0)
    assert [log["row"] for log in logs] == [ids[0], ids[3]]
    left = db.execute("SELECT id, status, hold_reason, lease_token FROM queue ORDER BY id")
    reason = "outcome unknown, but the database refuses to log that: no entry for "
    (first, second, third) = [(a, b, str(c)[: len(reason) + 2], d) for a, b, c, d in left]
    assert first == (ids[0], "HOLD", f"{reason}x1", None)
    assert second == (ids[2], "SENDING", "None", 7)
    assert third == (ids[3], "HOLD", f"{reason}x2", None)
    assert await leases.settle(ids) == (1, 0)
    assert column(db, "SELECT row_id FROM attempts ORDER BY 1") == ids[1:3]


async def test_the_duty_goes_through_all_rows_in_parts(
    db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_leases, "_ROWS_PER_LOOK", 3)
    monkeypatch.setattr(final_leases, "_ROWS_PER_SETTLE", 2)
    duty = FinalLeaseDuty(FinalLeases(link, "upkeep"))
    for number in range(1, 6):
        message(db, number)
        for _ in range(5):
            row(db, number, once=True)
    await duty.settle()  # it has the database from now on
    ids = column(
        db,
        "UPDATE queue SET lease_token = 7, lease_until = now() - interval '1 s',"
        " lease_since = now(), begun = 7, lease_owner = 'dead' WHERE id % 8 = 0 RETURNING id",
    )
    for _ in range(10):
        await duty.settle()
    assert column(db, "SELECT id FROM queue WHERE status = 'HOLD' ORDER BY id") == sorted(ids)


async def test_after_an_outage_the_workers_write_their_outcomes_first(
    db: psycopg.Connection, link: Link
) -> None:
    row_id = lost(db)
    leases = FinalLeases(link, "upkeep")
    duty = FinalLeaseDuty(leases)

    async def statuses() -> list[str]:
        await duty.settle()
        return column(db, "SELECT status FROM queue")

    assert await statuses() == ["SENDING"]  # the process has begun

    async def away(after: int, page: int) -> Any:
        raise StoreUnavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "next", away)
        with pytest.raises(StoreUnavailable):
            await duty.settle()
    assert await statuses() == ["SENDING"]
    assert await statuses() == ["HOLD"]
    assert column(db, "SELECT row_id FROM attempts") == [row_id]


async def test_the_search_reads_only_rows_that_must_not_go_twice(
    database: str, db: psycopg.Connection
) -> None:
    db.execute("INSERT INTO messages (id, size, trace, body) VALUES (1, 0, '', '')")
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, once)"
        " SELECT 1, '', 'r', 'd', n % 1000 = 0 FROM generate_series(1, 20000) AS n"
    )
    for session in ({}, SESSION):
        link = Link(database, "test", session)
        assert (await FinalLeases(link, "w").next(0, 100))[1:] == (20, [])
        await link.close()
    db.execute("SELECT pg_stat_force_next_flush()")
    (read,) = fetch(
        db, "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname LIKE 'queue%'"
    )
    assert read == 0
