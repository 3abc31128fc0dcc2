"""Outcomes: deliveries are facts, everything else counts under its own lease only."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgmta.action import Action
from pgmta.errors import Stage
from pgmta.model import Item, Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.states import TRANSITIONS, Event, Status, after
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.claim import Claims
from pgmta.store.queue.expired_leases import FinalLeases, take_lost
from pgmta.store.queue.settle import Settlements
from tests.support.rows import column, fetch, message, row
from tests.support.waiting import eventually

# a day that has a partition on both sides of midnight
POLICIES = ("hold", "remove", "bounce")
ENDED = (datetime.now(UTC) + timedelta(days=1)).replace(hour=12)
STARTED = ENDED - timedelta(seconds=3)


def outcome(item: Item, event: Event, reply: Reply | None = None, delay: float = 0.0) -> Outcome:
    reply = reply or Reply(250, "2.0.0 Ok")
    return Outcome(
        item, event, reply, "mx:25", Stage.END_OF_DATA, started=STARTED, ended=ENDED, delay=delay
    )


def state(db: psycopg.Connection, row_id: int) -> tuple[Any, ...] | None:
    """Of a row: all that an outcome may change."""
    return db.execute(
        "SELECT status, attempts, last_reply, lease_token, lease_owner, lease_since, lease_until, "
        "round(extract(epoch FROM next_attempt - now()) / 10)::int FROM queue WHERE id = %s",
        (row_id,),
    ).fetchone()


async def claimed(db: psycopg.Connection, link: Link, **columns: Any) -> Item:
    """Return a row of a new message, under a lease."""
    (number,) = fetch(db, "SELECT coalesce(max(id), 0) + 1 FROM messages")
    row_id = row(db, message(db, number), **columns)
    (item,) = (await Claims(link, "worker", 60, None).claim(1, [])).items
    assert item.id == row_id
    return item


async def test_every_event_moves_the_row_as_the_table_of_transitions_says(
    db: psycopg.Connection, link: Link
) -> None:
    store = Settlements(link, "worker")
    no_lease = (None, None, None, None)
    expected = {
        Event.DELIVERED: None,
        Event.DEFER: ("DEFERRED", 3, "451 4.0.0 later", *no_lease, 10),
        Event.UNKNOWN: ("DEFERRED", 3, "451 4.0.0 later", *no_lease, 10),
        Event.FAIL: ("HOLD", 3, "451 4.0.0 later", *no_lease, 0),
        Event.HAND_BACK: ("QUEUED", 2, "451 4.0.0 later", *no_lease, 0),
        Event.POSTPONE: ("QUEUED", 2, "451 4.0.0 later", *no_lease, 10),
        Event.SUPPRESS: None,
    }
    events = [event for status, event in TRANSITIONS if status is Status.SENDING]
    assert set(events) == {*expected, Event.TAKEOVER}
    items = {event: await claimed(db, link, attempts=2) for event in expected}
    outcomes = [
        outcome(item, event, Reply(451, "4.0.0 later"), 100) for event, item in items.items()
    ]
    for each in outcomes:
        each.answer_class = "" if each.event is Event.DELIVERED else "greylisted"
    assert await store.settle(outcomes) == {item.id for item in items.values()}
    assert {event: state(db, item.id) for event, item in items.items()} == expected
    for event, item in items.items():
        assert (state(db, item.id) or (None,))[0] == TRANSITIONS[Status.SENDING, event][0]
    logged = db.execute(
        "SELECT event, row_id, attempt, lease_token, code, enhanced, reply, command, host, "
        "worker, started_at, ended_at, class FROM attempts"
    ).fetchall()
    assert sorted(logged) == sorted(
        (event, i.id, 2 if event is Event.SUPPRESS else 3, i.token, 451, "4.0.0", "4.0.0 later",
         "end of data", "mx:25", "worker", STARTED, ENDED,
         None if event is Event.DELIVERED else "greylisted")
        for event, i in items.items() if event not in (Event.HAND_BACK, Event.POSTPONE)
    )  # fmt: skip
    assert column(db, "SELECT DISTINCT tableoid::regclass::text FROM attempts") == [
        f"attempts_{ENDED:%Y%m%d}"
    ]
    assert await store.settle([]) == set()


async def test_an_outcome_of_an_old_lease_changes_nothing_but_is_logged(
    db: psycopg.Connection, link: Link
) -> None:
    store = Settlements(link, "worker")
    item = await claimed(db, link)
    db.execute("UPDATE queue SET lease_until = now() - interval '1s'")
    (heir,) = (await Claims(link, "heir", 60, None).claim(1, [])).items
    before = state(db, item.id)
    for event in (Event.DEFER, Event.FAIL, Event.UNKNOWN, Event.HAND_BACK, Event.POSTPONE):
        assert await store.settle([outcome(item, event)]) == set()
        assert state(db, item.id) == before
    logged = "SELECT event, late FROM attempts WHERE worker = 'worker' ORDER BY event, late"
    moved = [(event, "moved on") for event in ("deferred", "failed", "unknown")]
    assert db.execute(logged).fetchall() == [*moved, ("unknown", None)]  # by the takeover
    # the same outcome once more, because the answer was lost: the log has it
    assert await store.settle([outcome(item, Event.DEFER)], again=True) == set()
    assert db.execute(logged).fetchall() == [*moved, ("unknown", None)]
    db.execute("UPDATE queue SET status = 'HOLD'")  # an operator: his status stays, the lease ends
    assert await store.settle([outcome(heir, Event.DEFER, delay=5)]) == {item.id}
    assert column(db, "SELECT status FROM queue WHERE lease_token IS NULL") == ["HOLD"]
    for changed, late in ({item.id}, None), (set(), "gone"):
        assert await store.settle([outcome(item, Event.DELIVERED)]) == changed
        delivered = column(db, "SELECT late FROM attempts WHERE event = 'delivered'")
        assert delivered.count(late) == 1


async def test_deliveries_alone_remove_their_rows_whatever_has_become_of_them(
    db: psycopg.Connection, link: Link
) -> None:
    """They have a statement of their own."""
    for n, status in enumerate(Status, 1):
        row(db, message(db, n), metadata={"status": status})
    items = (await Claims(link, "worker", 60).claim(1000, [])).items
    db.execute(
        "UPDATE queue SET status = metadata ->> 'status', send_at = now(), lease_token = 0,"
        """ metadata = '{"_partid": "9"}'"""
    )
    outcomes = [outcome(item, Event.DELIVERED) for item in items]
    assert await Settlements(link, "worker").settle(outcomes) == {item.id for item in items}
    assert column(db, "SELECT id FROM queue UNION ALL SELECT id FROM messages") == []


@pytest.mark.parametrize("stale", [False, True], ids=["own lease", "older lease"])
async def test_once_and_on_failed_decide_what_becomes_of_a_row(
    db: psycopg.Connection, link: Link, *, stale: bool
) -> None:
    """For every event, whatever status an operator has given the row during the attempt."""
    events = (
        *(Event.DELIVERED, Event.DEFER, Event.UNKNOWN, Event.FAIL, Event.HAND_BACK),
        Event.SUPPRESS,
    )
    store = Settlements(link, "worker")
    rows: dict[int, tuple[Outcome, Status, Status | None]] = {}
    for n, (event, status, once, on_failed) in enumerate(
        itertools.product(events, Status, (False, True), POLICIES), 1
    ):
        policy = {"once": once, "on_failed": on_failed}
        row(db, message(db, n), **policy, metadata={"status": status, "event": event})
    for item in (await Claims(link, "worker", 60).claim(1000, [])).items:
        facts = json.loads(item.metadata or "")
        event, status = Event(facts["event"]), Status(facts["status"])
        expected: Status | None = status
        if event is Event.DELIVERED:
            expected = None
        elif status is Status.SENDING and not stale:
            expected = after(event, once=item.once, on_failed=item.on_failed)
        elif event is Event.SUPPRESS and status is not Status.REPORT and not stale:
            expected = after(event, once=item.once, on_failed=item.on_failed)
            if expected is Status.REPORT and status is Status.DELETE:
                expected = status  # nobody is told of what an operator deletes
        elif event is Event.UNKNOWN and item.once and status is not Status.DELETE and not stale:
            theirs = status in (Status.HOLD, Status.REPORT)  # an operator's
            gone = item.on_failed == "remove" and not theirs
            expected = None if gone else Status.HOLD
        rows[item.id] = outcome(item, event, Reply(0, "lost")), status, expected
    assert len(rows) == n
    db.execute(
        "UPDATE queue SET status = metadata ->> 'status', send_at = now(), hold_reason = 'mine',"
        " held_by = 'me', hold_until = now() + '1 h', lease_token = lease_token + %s::int",
        (stale,),
    )
    outcomes = [each for each, _, _ in rows.values()]
    changed = {i for i, (each, _, _) in rows.items() if not stale or each.event is Event.DELIVERED}
    assert await store.settle(outcomes) == changed
    left = {
        found[0]: found[1:]
        for found in db.execute(
            "SELECT id, status, lease_token, hold_reason, held_by, hold_until FROM queue"
        )
    }
    uncertain = "outcome unknown: a release may send a second copy"
    for row_id, (each, status, expected) in rows.items():
        found = left.get(row_id, (None,) * 5)
        assert found[0] == expected, (each.event, status, each.item)
        if expected is None or stale:
            continue
        assert found[1] is None
        final = each.event is Event.UNKNOWN and each.item.once
        if final and expected is Status.HOLD:
            held = status in (Status.HOLD, Status.REPORT)
            assert found[2:] == (f"{uncertain}; mine", "me" if held else found[3], None)
        elif status is expected is Status.HOLD:
            assert found[2:4] == ("mine", "me")
            assert found[4]
    assert len(column(db, "SELECT id FROM messages")) == len(left)
    # a second time, because the answer was lost with the connection
    before = fetch(db, "SELECT array_agg(q ORDER BY id)::text FROM queue AS q")
    assert await store.settle(outcomes, again=True) == set()
    assert fetch(db, "SELECT array_agg(q ORDER BY id)::text FROM queue AS q") == before
    assert fetch(db, "SELECT count(*) FROM attempts")[0] == len(
        [each for each in outcomes if each.event is not Event.HAND_BACK]
    )


async def test_a_success_that_is_reported_waits_in_report_whatever_the_lease(
    db: psycopg.Connection, link: Link
) -> None:
    store = Settlements(link, "worker")
    items = [await claimed(db, link, on_failed="bounce") for _ in range(5)]
    first, plain, stale, asked, late = items
    db.execute("UPDATE queue SET lease_token = 0 WHERE id = %s", (stale.id,))
    db.execute("UPDATE queue SET status = 'DELETE' WHERE id = %s", (asked.id,))
    outcomes = [outcome(item, Event.DELIVERED) for item in items[:4]]
    for each, report in zip(outcomes, ("relayed", "", "delivered", "relayed"), strict=True):
        each.report = report
    deferral = outcome(late, Event.DEFER, Reply(451, "later"), 60.0)
    deferral.overdue = 14_400.0
    for again in (False, True):
        expected = {first.id, stale.id, asked.id} | (set() if again else {plain.id, late.id})
        assert await store.settle([*outcomes, deferral], again) == expected
        assert db.execute(
            "SELECT id, status, report_kind, held_by, lease_token, last_reply, held_at <= now()"
            " FROM queue ORDER BY id"
        ).fetchall() == [
            (first.id, "REPORT", "relayed", "worker", None, "250 2.0.0 Ok", True),
            (stale.id, "REPORT", "delivered", "worker", None, "250 2.0.0 Ok", True),
            (asked.id, "REPORT", "relayed", "worker", None, "250 2.0.0 Ok", True),
            (late.id, "DEFERRED", None, None, None, "451 later", None),
        ]
        assert db.execute("SELECT row_id, after, message_id FROM delays").fetchall() == [
            (late.id, timedelta(hours=4), late.message_id)
        ]
    assert len(column(db, "SELECT id FROM messages")) == 4
    states = "SELECT recipient, state FROM message_status WHERE message_id <> %s"
    assert dict(db.execute(states, (late.message_id,)).fetchall()) == {"r@b.example": "delivered"}
    assert (await Claims(link, "worker", 60).claim(99, [])).items == []
    for status in ("HOLD", "QUEUED", "DELETE"):  # an operator: a release would be a second copy
        db.execute("UPDATE queue SET status = %s WHERE status = 'REPORT'", (status,))
        kept = ["REPORT"] * 3 if status != "DELETE" else ["DELETE"] * 3
        assert column(db, "SELECT status FROM queue WHERE id <> %s", late.id) == kept


@pytest.mark.parametrize("remove", [False, True])
async def test_an_operator_is_quicker_than_an_outcome_that_waits_for_his_lock(
    database: str, db: psycopg.Connection, link: Link, *, remove: bool
) -> None:
    policy = {"once": True, "on_failed": "remove" if remove else "hold"}
    failed = await claimed(db, link, **policy)
    lost = await claimed(db, link, **policy)
    held = await claimed(db, link, **policy)
    store = Settlements(link, "worker")
    outcomes = [outcome(failed, Event.FAIL), *(outcome(i, Event.UNKNOWN) for i in (lost, held))]
    with psycopg.connect(database) as operator:
        operator.execute("UPDATE queue SET status = 'QUEUED' WHERE id <> %s", (held.id,))
        operator.execute("UPDATE queue SET status = 'HOLD' WHERE id = %s", (held.id,))
        task = asyncio.create_task(store.settle(outcomes))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await eventually(lambda: fetch(db, waiting)[0])
        operator.commit()
    assert await task == {failed.id, lost.id, held.id}
    assert (state(db, failed.id) or ())[:1] == ("QUEUED",)
    assert (state(db, lost.id) or (None,))[0] == (None if remove else "HOLD")
    assert (state(db, held.id) or ())[:1] == ("HOLD",)
    assert column(db, "SELECT DISTINCT lease_token FROM queue") == [None]


async def test_every_entry_of_the_log_says_whose_mail_it_was(
    database: str, db: psycopg.Connection, link: Link
) -> None:
    """By whichever way it comes; and the second half of the rows has none of these values."""
    ways = ("delivered", "plain", "deferred", "lost", "lost singly", "final", "deleted")
    message(db, 1)
    message(db, 2)
    db.execute("UPDATE messages SET message_id_header = '<ü@x>', submitted_by = 'app' WHERE id = 1")
    metadata = {"k": 'ü"\\'}
    ids = {
        (n, way): row(db, n, **({"tenant": "t", "metadata": metadata} if n == 1 else {}),
                      recipient=f"{way}@b.example", once=way == "final")
        for n in (1, 2) for way in ways
    }  # fmt: skip
    items = {item.id: item for item in (await Claims(link, "w", 60).claim(99, [])).items}
    store = Settlements(link, "w")

    def mine(way: str) -> list[Item]:
        return [items[ids[n, way]] for n in (1, 2)]

    await store.settle([outcome(i, Event.DELIVERED) for i in mine("plain")])
    await store.settle([outcome(i, Event.DELIVERED) for i in mine("delivered")][1:])
    await store.settle(
        [outcome(i, Event.DELIVERED) for i in mine("delivered")[:1]]
        + [outcome(i, Event.DEFER, delay=3600.0) for i in mine("deferred")]
    )
    db.execute(
        "UPDATE queue SET begun = lease_token, lease_until = now() - interval '1 s'"
        " WHERE recipient ~ '^[lf]'"
    )
    db.execute("UPDATE queue SET priority = 9 WHERE recipient LIKE 'lost singly%'")
    db.execute("UPDATE queue SET status = 'DELETE', lease_until = now() WHERE recipient ~ '^del'")
    assert len((await Claims(link, "w", 60, priority=5).claim(99, [])).items) == 2
    assert not await take_lost(link, "w")
    final = FinalLeases(link, "w")
    assert await final.settle((await final.next(0, 99))[2]) == (2, 0)
    changes = WorkerChanges(link)
    assert await changes.run(RowChange(Action.DELETE, "status = 'DELETE'", "w", "asked")) == 2
    logged = db.execute(
        # a deleted row has two: its lease was lost as well
        "SELECT DISTINCT message_id, split_part(recipient, '@', 1), tenant, message_id_header,"
        " submitted_by, metadata FROM attempts"
    )
    assert sorted(logged, key=str) == sorted(
        ((n, way, *(("t", "<ü@x>", "app", metadata) if n == 1 else ("", None, None, None)))
         for n, way in ids),
        key=str,
    )  # fmt: skip


async def test_replies_of_any_text_fit_and_an_empty_one_keeps_the_last(
    db: psycopg.Connection, link: Link
) -> None:
    store = Settlements(link, "worker")
    item = await claimed(db, link, last_reply="451 before")
    await store.settle([outcome(item, Event.HAND_BACK, Reply(0, ""))])
    assert (state(db, item.id) or ())[2] == "451 before"
    for reply, kept in [
        (Reply(0, "connection refused"), "connection refused"),
        (Reply(421, ""), "421"),
        (Reply(599, "é\ufffd'\"\\ %s {x} " + "x" * 70_000), "599 é\ufffd'\"\\ %s {x} "),
    ]:
        (item,) = (await Claims(link, "worker", 60, None).claim(1, [])).items
        assert await store.settle([outcome(item, Event.DEFER, reply)]) == {item.id}
        assert str((state(db, item.id) or ())[2]).rstrip("x") == kept


async def test_rows_on_hold_cost_a_settlement_nothing(db: psycopg.Connection, link: Link) -> None:
    """Also where its plans were made while nothing was on hold."""
    claims, store = Claims(link, "worker", 60, None), Settlements(link, "worker")
    number = 0

    async def settle(event: Event) -> None:
        nonlocal number
        for _ in range(20):
            number += 1
            row(db, message(db, number))
        items = (await claims.claim(20, [])).items
        assert len(await store.settle([outcome(item, event, delay=99.0) for item in items])) == 20

    async def read() -> int:
        # of both connections: otherwise earlier reads of ours may be reported after `before` only
        db.execute("SELECT pg_stat_force_next_flush()")
        await link.run("SELECT pg_stat_force_next_flush()")
        (tuples,) = fetch(
            db,
            "SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes WHERE relname = 'queue_hold'",
        )
        return int(tuples)

    def hold() -> None:
        db.execute(
            "INSERT INTO queue (message_id, sender, recipient, domain, status)"
            " SELECT 0, 's', 'r', 'b.example', 'HOLD' FROM generate_series(1, 2000)"
        )

    message(db, 0)
    row(db, 0, due=60)
    hold()
    db.execute("DELETE FROM queue WHERE status = 'HOLD'")
    db.execute("VACUUM (ANALYZE) queue_hold")
    for event in (Event.DELIVERED, Event.DEFER) * 3:
        await settle(event)
    hold()
    before = await read()
    for event in (Event.DELIVERED, Event.DEFER):
        await settle(event)
    assert await read() - before < 500, before
