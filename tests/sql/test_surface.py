"""The views, and the functions that operators call from psql."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg import sql

from pgmta.action import Action
from pgmta.errors import Stage, StoreUnavailable
from pgmta.model import Item, NewMessage, Outcome, Reply
from pgmta.postgres.embedded.programs import tool
from pgmta.postgres.link import Link
from pgmta.states import Event
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.enqueue import Enqueue
from pgmta.store.queue.settle import Settlements
from tests.support.waiting import PATIENCE, eventually

REPLIES = {
    Event.DELIVERED: Reply(250, "2.0.0 ok"),
    Event.DEFER: Reply(450, "4.2.0 later"),
    Event.UNKNOWN: Reply(0, "connection lost after the final dot"),
    Event.FAIL: Reply(550, "5.1.1 no such user"),
}


@asynccontextmanager
async def linked(uri: str, **settings: str) -> AsyncIterator[Link]:
    link = Link(uri, "test", settings)
    try:
        yield link
    finally:
        await link.close()


def message(number: int, *recipients: str, **metadata: Any) -> NewMessage:
    return NewMessage(
        id=number,
        sender="a@example.org",
        recipients=[(r, r.rpartition("@")[2]) for r in recipients],
        size=5,
        trace="",
        body=b"hello",
        metadata=[json.dumps(metadata)] * len(recipients),
    )


async def enqueue(uri: str, *messages: NewMessage) -> None:
    async with linked(uri) as link:
        await Enqueue(link).commit(list(messages))


def outcome(item: Item, event: Event) -> Outcome:
    now = datetime.now(UTC)
    return Outcome(item, event, REPLIES[event], "mx.example:25", Stage.DATA, started=now, ended=now)


def one(db: psycopg.Connection, query: str) -> Any:
    row = db.execute(query.encode()).fetchone()
    return row[0] if row and len(row) == 1 else row


async def test_functions_change_what_matches_and_leave_an_audit_row(
    database: str, db: psycopg.Connection
) -> None:
    await enqueue(database, *(message(n, f"r{n}@a.example", "x@b.example") for n in range(1, 5)))
    at_a = "domain = 'a.example'"
    assert one(db, f"SELECT queue_hold($${at_a}$$, 'spam?', '1 hour')") == 4
    assert one(db, f"SELECT queue_hold($${at_a}$$, 'again')") == 0
    held = "SELECT hold_reason, held_by = session_user, hold_until > now() FROM queue_hold LIMIT 1"
    assert one(db, held) == ("spam?", True, True)
    assert one(db, "SELECT queue_quarantine('message_id = 1', 'q:1', 'virus')") == 2
    assert set(
        db.execute("SELECT quarantine, reason, rows, without_expiry FROM hold_overview")
    ) == {
        ("q:1", "virus", 2, 2),
        (None, "spam?", 3, 0),
    }
    db.execute("LISTEN pgmta_queue")
    assert one(db, "SELECT queue_release('hold_reason = ''spam?''')") == 3
    assert len(list(db.notifies(timeout=PATIENCE, stop_after=1))) == 1
    assert one(db, "SELECT queue_retry('true')") == 6  # held ones stay held
    assert one(db, "SELECT queue_delete('message_id < 3 -- the first two', 'refused')") == 4
    assert one(db, "SELECT count(*) FROM messages") == 4  # a request; queued acts on it
    assert db.execute(
        "SELECT action, condition, details ->> 'reason', rows FROM audit "
        "WHERE who = session_user AND finished_at >= at ORDER BY id"
    ).fetchall() == [
        ("hold", at_a, "spam?", 4),
        ("hold", at_a, "again", 0),
        ("quarantine", "message_id = 1", "virus", 2),
        ("release", "hold_reason = 'spam?'", None, 3),
        ("retry", "true", None, 6),
        ("delete", "message_id < 3 -- the first two", "refused", 4),
    ]


CONDITIONS = [
    None, " \n", "true) OR (true", "true); DROP TABLE audit; SELECT (true",
    "true])[1]; DROP TABLE audit; SELECT (ARRAY[true", "true /*", "true) --", "$$", "id = $1",
    "true, true", "status", "nothing = 1",
]  # fmt: skip


async def test_a_condition_is_one_expression(database: str, db: psycopg.Connection) -> None:
    await enqueue(database, message(1, "b@example.com"))
    for condition in CONDITIONS:
        with pytest.raises(psycopg.DatabaseError, match="the condition is"):
            db.execute("SELECT queue_delete(%s, 'no')", [condition])
    assert one(db, "SELECT status FROM queue") == "QUEUED"
    assert one(db, "SELECT count(*) FROM audit") == 0
    for call in ("queue_hold('true', '')", "queue_quarantine('true', NULL, 'why')"):
        with pytest.raises(pg_errors.InvalidParameterValue, match="reason is needed"):
            db.execute(f"SELECT {call}".encode())


async def test_an_attempt_in_flight_is_recorded_whatever_an_operator_does(
    database: str, db: psycopg.Connection
) -> None:
    events = {1: Event.DELIVERED, 2: Event.DEFER, 3: Event.UNKNOWN, 4: Event.DELIVERED}
    await enqueue(database, *(message(n, "b@example.com") for n in events))
    async with linked(database, **SESSION) as link:
        items = (await Claims(link, "w", 60).claim(10, [])).items
        assert one(db, "SELECT queue_hold('message_id < 3', 'wait')") == 2
        assert one(db, "SELECT queue_delete('message_id > 2', 'gone')") == 2
        assert one(db, "SELECT count(*) FROM queue WHERE lease_token IS NOT NULL") == 4
        changes = WorkerChanges(link)
        requests = RowChange(Action.DELETE, "status = 'DELETE'", "w")
        assert await changes.run(requests) == 0  # still leased
        # released again before its outcome is known: no other worker may claim it
        assert one(db, "SELECT queue_release('message_id = 2')") == 1
        assert (await Claims(link, "other", 60).claim(10, [])).items == []
        await Settlements(link, "w").settle([outcome(i, events[i.message_id]) for i in items])
        rows = db.execute(
            "SELECT message_id, status, lease_token, last_reply FROM queue ORDER BY 1"
        )
        assert rows.fetchall() == [
            (2, "QUEUED", None, "450 4.2.0 later"),
            (3, "DELETE", None, "connection lost after the final dot"),
        ]
        assert await changes.run(requests) == 1
    assert db.execute("SELECT id FROM messages").fetchall() == [(2,)]
    history = db.execute(
        "SELECT event, code, host FROM attempt_history WHERE message_id = 3 ORDER BY ended_at"
    )
    assert history.fetchall() == [("unknown", None, "mx.example:25"), ("deleted", None, None)]


async def test_views_answer(database: str, db: psycopg.Connection) -> None:
    await enqueue(database, *(message(n, "b@a.example", "c@b.example") for n in (1, 2)))
    async with linked(database, **SESSION) as link:
        claims, settlements = Claims(link, "w", 60), Settlements(link, "w")
        items = {(i.message_id, i.domain): i for i in (await claims.claim(10, [])).items}
        first = items[1, "a.example"]
        await settlements.settle([outcome(first, Event.UNKNOWN)])
        await settlements.settle([outcome(first, Event.UNKNOWN)])  # its commit's answer was lost
        deferral = outcome(items[1, "b.example"], Event.DEFER)
        deferral.delay = 60
        await settlements.settle([deferral])
        await settlements.settle([outcome(items[2, "b.example"], Event.FAIL)])
        assert db.execute("SELECT * FROM duplicates").fetchall() == []  # one delivery at most
        db.execute("SELECT queue_retry('message_id = 1 AND domain = ''a.example''')")
        again = [i for i in (await claims.claim(10, [])).items if i.id == first.id]
        await settlements.settle([outcome(i, Event.DELIVERED) for i in again])
    assert db.execute("SELECT message_id, recipient, possible, unknown, reason FROM duplicates")\
        .fetchall() == [
        (1, "b@a.example", 2, 1, "mx.example:25: connection lost after the final dot")
    ]  # fmt: skip
    overview = db.execute("SELECT status, rows, messages, octets, due_now FROM queue_overview")
    assert set(overview) == {
        ("QUEUED", 0, 0, 0, 0),
        ("DEFERRED", 1, 1, 5, 0),
        ("SENDING", 1, 1, 5, 0),
        ("HOLD", 1, 1, 5, 0),
        ("DELETE", 0, 0, 0, 0),
        ("SCHEDULED", 0, 0, 0, 0),
        ("REPORT", 0, 0, 0, 0),
    }
    assert db.execute(
        "SELECT rows, queued, deferred, sending, held, deleting, last_reply FROM queue_by_domain "
        "WHERE domain = 'b.example'"
    ).fetchall() == [(2, 0, 1, 0, 1, 0, "450 4.2.0 later")]
    rates = "SELECT sum(delivered), sum(deferred), sum(failed), sum(unknown) FROM attempt_rates"
    assert one(db, rates) == (1, 1, 1, 2)
    db.execute("INSERT INTO workers (owner, name, action, reach, seen_at) VALUES "
               "('h:1', 'in', 'deliver', 'true', now()), "
               "('h:2', 'out', 'hold', 'true', now() - interval '2 minutes')")  # fmt: skip
    assert set(db.execute("SELECT name, alive FROM worker_overview")) == {
        ("in", True),
        ("out", False),
    }


def _operate(uri: str, calls: list[str], stop: threading.Event, errors: list[Exception]) -> None:
    dice = random.Random(str(calls))
    with psycopg.connect(uri, autocommit=True) as db:
        while not stop.is_set():
            try:
                db.execute(dice.choice(calls).encode())
            except Exception as error:  # whatever it is, the test reports it
                errors.append(error)


async def test_operators_workers_and_moving_rows_do_not_disturb_each_other(
    database: str, db: psycopg.Connection
) -> None:
    """Hot messages of several recipients, so that rows and bodies are contended for."""
    recipients = [f"r{n}@d{n}.example" for n in range(4)]
    await enqueue(database, *(message(n, *recipients) for n in range(1, 601)))
    stop, errors = threading.Event(), list[Exception]()
    some = "id % 7 < 4"
    operators = [
        [f"SELECT queue_hold('{some}', 'a')", f"SELECT queue_retry('{some}')"],
        ["SELECT queue_release('true')", "SELECT queue_hold('id % 5 = 1', 'b')"],
        ["SELECT queue_quarantine('id % 11 = 3', 'q', 'c')", "SELECT queue_release('id % 3 = 0')"],
        ["SELECT queue_delete('id % 151 = 1', 'd')", "SELECT queue_retry('true')"],
    ]
    threads = [
        threading.Thread(target=_operate, args=(database, calls, stop, errors))
        for calls in operators
    ]
    gone = 0

    async def work(name: str) -> None:
        nonlocal gone
        dice = random.Random(name)
        async with linked(database, **SESSION) as link:
            claims, settlements = Claims(link, name, 60), Settlements(link, name)
            changes = WorkerChanges(link)
            while not stop.is_set():
                items = (await claims.claim(40, [])).items
                dice.shuffle(items)
                events = dice.choices(
                    [Event.DELIVERED, Event.DEFER, Event.UNKNOWN], [1, 6, 2], k=40
                )
                pairs = list(zip(items, events, strict=False))
                settled = False
                while not settled:  # as the Settler repeats it, after ten deadlocks in a row
                    with suppress(StoreUnavailable):
                        await settlements.settle([outcome(i, e) for i, e in pairs])
                        settled = True
                gone += sum(event is Event.DELIVERED for _, event in pairs)
                deleted = await changes.run(RowChange(Action.DELETE, "status = 'DELETE'", name))
                gone += deleted

    for thread in threads:
        thread.start()
    audited = "SELECT coalesce(sum(rows), 0) FROM audit"

    async def watch() -> None:
        try:
            await eventually(lambda: gone > 200 and one(db, audited) > 2000)
        finally:
            stop.set()

    try:
        await asyncio.gather(watch(), *(work(f"w{n}") for n in range(3)))
    finally:
        for thread in threads:
            await asyncio.to_thread(thread.join)

    assert errors == []
    assert gone > 100
    assert one(db, "SELECT count(*) FROM queue") == 2400 - gone
    assert one(db, "SELECT count(*) FROM attempts WHERE event IN ('delivered', 'deleted')") == gone
    assert one(db, "SELECT count(*) FROM messages") == one(
        db, "SELECT count(DISTINCT message_id) FROM queue"
    )
    assert one(db, "SELECT bool_and(finished_at IS NOT NULL) AND sum(rows) > 1000 FROM audit")


async def test_every_sql_block_of_the_manual_runs_in_psql(database: str) -> None:
    await enqueue(
        database,
        message(51, "bob@example.com", _quarantineid="mailquarantine:release1"),
        message(52, "bob@example.com", _partid="2"),
        message(53, "bob@example.com", _partid="1"),
    )
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("UPDATE queue SET status = 'HOLD', ts = now() - interval '2 days' WHERE id = 1")
        db.execute("UPDATE queue SET status = 'REPORT' WHERE id = 3")
        # as in a database that pg_restore has filled
        name = sql.Identifier(db.info.dbname)
        db.execute(sql.SQL("ALTER DATABASE {} RESET search_path").format(name))
    folder = Path(__file__).parents[2] / "docs"
    others = (
        "mail/rewriting",
        "mail/bounces",
        "mail/answers",
        "operate/operations",
        "operate/upgrade",
    )
    for page in others:
        found = re.findall(
            r"^```sql\n((?:SELECT|INSERT).*?)^```",
            (folder / f"{page}.md").read_text(encoding="utf-8"),
            re.MULTILINE | re.DOTALL,
        )
        assert found
        with psycopg.connect(database) as db:
            for block in found:
                db.execute(block.encode())
            db.rollback()
    text = (folder / "programs" / "sql.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        done = await asyncio.to_thread(
            subprocess.run,
            [tool("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-c", "BEGIN", "-f", "-",
             "-c", "ROLLBACK", database],
            input=block, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        if block.startswith("UPDATE pgmta.queue SET status = 'DELETE'"):
            assert "UPDATE 1" in done.stdout  # retention
    with psycopg.connect(database) as db:
        assert db.execute("SELECT array_agg(id ORDER BY id) FROM pgmta.queue").fetchone() == (
            [1, 2, 3],
        )
