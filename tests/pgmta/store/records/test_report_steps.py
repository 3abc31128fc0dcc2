"""The duty that reports, while processes, connections and the database die; large DSNs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgmta.errors import AnswerLost, StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queue.enqueue import Enqueue
from queued.upkeep.reports import ReportDuty
from tests.support.reporting import WAITING, dsns, duty, ended, ends, process_of
from tests.support.rows import column, fetch, message
from tests.support.waiting import PATIENCE, eventually


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_connection_that_breaks_at_the_commit_neither_loses_nor_doubles(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """The answer to every second commit is lost; the commit itself is done, or is not."""
    db.execute("SELECT setval('message_ids', 1000)")
    for n in range(1, 201):
        ended(db, n, sender=f"s{n}@a.example")
    run, calls = Link.run_together, itertools.count()

    async def breaking(link: Link, statements: Any, **more: Any) -> Any:
        if next(calls) % 2:
            return await run(link, statements, **more)
        backend = (await link.run("SELECT pg_backend_pid(), now()"))[0]
        if after:
            await run(link, statements, **more)
        raise AnswerLost("lost", (backend[0], backend[1]))

    monkeypatch.setattr(Link, "run_together", breaking)
    monkeypatch.setattr("queued.upkeep.reports._ROWS_PER_LOOK", 20)
    async with duty(database):
        await ends(db)
    assert sorted(to for to, _ in dsns(db)) == sorted(f"s{n}@a.example" for n in range(1, 201))
    assert fetch(db, "SELECT count(*), count(DISTINCT report_id) FROM reports") == (200, 200)
    assert fetch(db, "SELECT sum(number) FROM report_counts WHERE sender = ''") == (200,)


@pytest.mark.slow
async def test_a_process_that_dies_at_any_step_neither_loses_nor_doubles(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each statement of a round; the next process does the rest."""
    db.execute("SELECT setval('message_ids', 100000)")
    left = [0]

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise asyncio.CancelledError
            found = await work(*args, **more)
            left[0] -= 1
            if left[0] == 0:
                raise asyncio.CancelledError
            return found

        return call

    monkeypatch.setattr(Link, "run", dying(Link.run))
    monkeypatch.setattr(Enqueue, "chunks", dying(Enqueue.chunks))
    monkeypatch.setattr(Link, "run_together", dying(Link.run_together))
    monkeypatch.setattr("queued.reports.writer.MAX_IN_MEMORY_OCTETS", 20_000)
    number = deaths = 0
    for step in itertools.count(1):
        for chunks in (0, 0, 2, 4):  # in the row, in chunks, and as a stream
            number += 1
            message(db, number, chunks=chunks)
            octets = "UPDATE message_chunks SET data = %s WHERE message_id = %s"
            db.execute(octets, (b"x" * 8096, number))
            size = "UPDATE messages SET size = 8096 * chunks WHERE id = %s AND chunks > 0"
            db.execute(size, (number,))
            for _ in range(2):
                ended(db, number, sender=f"s{number}@a.example")
        left[0] = step
        process = process_of(database)
        work = ReportDuty(process)
        task = asyncio.create_task(work.run())
        await eventually(lambda: task.done() or fetch(db, WAITING) == (0,))  # noqa: B023
        died = left[0] <= 0
        deaths += died
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await process.close()
        left[0] = 0
        async with duty(database):
            await ends(db)
        if not died:
            break
    assert deaths > 15
    assert sorted(dsns(db)) == sorted(
        (f"s{n}@a.example", ["r@b.example"] * 2) for n in range(1, number + 1)
    )
    counts = "SELECT count(*), count(DISTINCT row_id), count(DISTINCT report_id) FROM reports"
    assert fetch(db, counts) == (2 * number, 2 * number, number)
    assert fetch(db, "SELECT sum(number) FROM report_counts WHERE sender = ''") == (number,)


async def test_a_dsn_of_many_recipients_and_one_with_large_content(
    database: str, db: psycopg.Connection
) -> None:
    db.execute("SELECT setval('message_ids', 1000)")
    message(db, 1)
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, status, held_at, report_kind)"
        " SELECT 1, 's@a.example', n || '@b.example', 'b.example', 'REPORT', '2020-01-01',"
        " 'failed' FROM generate_series(1, 10000) AS n"
    )
    octets = b"Subject: large\r\n\r\n" + b"0123456789abcdef" * 4 * 8096 + b"\r\nend\r\n"
    chunks = [octets[at : at + 8096] for at in range(0, len(octets), 8096)]
    message(db, 2)
    for position, data in enumerate(chunks * 1):
        db.execute("INSERT INTO message_chunks VALUES (2, %s, now(), %s)", (position, data))
    db.execute("UPDATE messages SET size = %s, chunks = %s, body = '' WHERE id = 2",
               (len(octets), len(chunks)))  # fmt: skip
    ended(db, 2, sender="large@a.example")
    async with duty(database, content="100MB"):
        await ends(db)
    many, large = sorted(dsns(db), key=lambda each: -len(each[1]))
    assert many[1] == [f"{n}@b.example" for n in range(1, 10001)]
    assert large == ("large@a.example", ["r@b.example"])
    (whole,) = fetch(
        db,
        "SELECT string_agg(data, '' ORDER BY position) FROM message_chunks WHERE message_id ="
        " (SELECT message_id FROM queue WHERE recipient = 'large@a.example')",
    )
    assert octets in bytes(whole)
    assert len(column(db, "SELECT id FROM messages")) == 2


async def test_a_content_that_is_gone_or_refused_stops_no_other(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.reports.writer.MAX_IN_MEMORY_OCTETS", 20_000)
    monkeypatch.setattr("queued.reports.writer._CHUNKS_PER_PART", 1)
    db.execute("SELECT setval('message_ids', 1000)")
    for number in range(1, 13):
        message(db, number, chunks=(4, 2)[number % 2])  # a stream, or from memory
        sender = f"s{number}@a.example"
        octets = "UPDATE message_chunks SET data = %s WHERE message_id = %s"
        db.execute(octets, ((sender.encode() + b" ").ljust(8096, b"x"), number))
        size = "UPDATE messages SET size = 8096 * chunks WHERE id = %s"
        db.execute(size, (number,))
        ended(db, number, sender=sender)
    db.execute("DELETE FROM message_chunks WHERE (message_id, position) IN ((6, 2), (5, 1))")
    smuggled = "UPDATE message_chunks SET data = %s WHERE message_id IN (7, 8) AND position = 1"
    db.execute(smuggled, (b"\n.\n".ljust(8096, b"x"),))
    db.execute("""
        CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.data LIKE '%s9@a.example %' THEN RAISE EXCEPTION 'not these'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER no BEFORE INSERT ON message_chunks FOR EACH ROW EXECUTE FUNCTION no();
    """)
    async with duty(database):
        await ends(db)
    held = db.execute("SELECT message_id, hold_reason FROM queue WHERE status = 'HOLD' ORDER BY id")
    assert held.fetchall() == [(9, "its DSN is refused: not these")]
    assert {to for to, _ in dsns(db)} == {f"s{n}@a.example" for n in {*range(1, 13)} - {9}}
    whole = column(
        db,
        "SELECT q.recipient FROM queue AS q WHERE q.metadata ? '_report' AND EXISTS (SELECT FROM"
        " message_chunks AS c WHERE c.message_id = q.message_id AND position('message/rfc822' IN"
        " convert_from(data, 'LATIN1')) > 0)",
    )
    assert sorted(whole) == sorted(f"s{n}@a.example" for n in (1, 2, 3, 4, 10, 11, 12))
    orphans = (
        "SELECT count(*) FROM message_chunks WHERE message_id NOT IN (SELECT id FROM messages)"
    )
    assert fetch(db, orphans) == (0,)


async def test_a_database_that_is_read_only_or_away_is_waited_for(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.upkeep.reports._MAX_RETRY_PAUSE_S", 0.1)
    db.execute("SELECT setval('message_ids', 1000)")
    failed = asyncio.Event()
    run = ReportDuty._report

    async def watched(work: ReportDuty, *, turn: bool) -> None:
        try:
            await run(work, turn=turn)
        except StoreUnavailable:
            failed.set()
            raise

    monkeypatch.setattr(ReportDuty, "_report", watched)
    ended(db, 1)
    name = db.info.dbname
    db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    db.execute("SET default_transaction_read_only = off")
    async with duty(database):
        await asyncio.wait_for(failed.wait(), PATIENCE)
        db.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
        await ends(db)
    assert len(dsns(db)) == 1
