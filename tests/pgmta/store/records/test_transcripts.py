"""Facts and transcripts of attempts, and traces, in the database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg_errors

from pgmta.errors import Stage
from pgmta.model import Item, Outcome, Reply
from pgmta.postgres.link import Link
from pgmta.postgres.operator import connect_operator
from pgmta.states import Event
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.settle import Settlements
from pgmta.store.records.days import keep_days
from pgmta.store.records.traces import Trace, TraceOrders, Traces
from queued.delivery.transport.connection_facts import ConnectionFacts
from queued.delivery.transport.result import Result
from queued.delivery.transport.transcript import NOTE, RECEIVED, Entry
from queued.worker.attempt_recorder import AttemptRecorder, TraceWatch
from tests.sql.test_roles import acting
from tests.support.queuectl import Command
from tests.support.rows import fetch, message, row

NOW = datetime.now(UTC)
TLS = ConnectionFacts(
    "mx.example:25", "192.0.2.1", "TLSv1.3", "TLS_AES_256_GCM_SHA384", "dane", 0.25, 0.5, 0.25, 2.0
)
COLUMNS = """host, address, tls_version, tls_cipher, tls_verified, dns_seconds, connect_seconds,
    tls_seconds, transaction_seconds"""
CIPHER = ("TLSv1.3", "TLS_AES_256_GCM_SHA384", "dane")


@pytest.fixture
async def link(database: str) -> AsyncIterator[Link]:
    """A connection with the rights of queued."""
    link = Link(acting(database, "pgmta_queued"), "test", SESSION)
    yield link
    await link.close()


def outcome(item: Item, event: Event, **fields: Any) -> Outcome:
    reply = Reply(250 if event is Event.DELIVERED else 451, "4.2.0 words")
    return Outcome(
        item, event, reply, "mx.example:25", Stage.MAIL, started=NOW, ended=NOW, **fields
    )


async def claimed(db: psycopg.Connection, link: Link, number: int, rows: int = 1) -> list[Item]:
    message(db, number)
    for n in range(rows):
        row(db, number, recipient=f"r{n}@b.example")
    return (await Claims(link, "w", 60).claim(rows, [])).items


async def test_the_log_has_the_facts_of_each_attempt(db: psycopg.Connection, link: Link) -> None:
    items = await claimed(db, link, 1, 5)
    facts = [TLS, TLS.kept(), TLS, ConnectionFacts("mx.example:25", "2001:db8::1"), None]
    events = [Event.DELIVERED] * 4 + [Event.DEFER]
    outcomes = [
        outcome(item, event, facts=each, seconds=0.125, delay=9.0)
        for item, event, each in zip(items, events, facts, strict=True)
    ]
    store = Settlements(link, "w")
    assert len(await store.settle(outcomes[:2])) == 2
    assert len(await store.settle(outcomes[2:])) == 3
    logged = db.execute(f"SELECT {COLUMNS} FROM attempts ORDER BY row_id".encode()).fetchall()
    host = "mx.example:25"
    assert logged == [
        (host, "192.0.2.1", *CIPHER, 0.25, 0.75, 2.0, 0.125),
        (host, "192.0.2.1", *CIPHER, None, None, None, 0.125),
        (host, "192.0.2.1", *CIPHER, 0.25, 0.75, 2.0, 0.125),
        (host, "2001:db8::1", None, None, None, None, None, None, 0.125),
        (host, None, None, None, None, None, None, None, 0.125),
    ]
    history = f"SELECT {COLUMNS} FROM attempt_history ORDER BY row_id"
    assert db.execute(history.encode()).fetchall() == logged


async def test_rows_of_a_transaction_share_a_transcript_that_is_written_once(
    db: psycopg.Connection, link: Link
) -> None:
    first, second, third = await claimed(db, link, 1, 3)
    (other,) = await claimed(db, link, 2)
    mixed = [
        outcome(first, Event.DELIVERED),
        outcome(second, Event.DEFER, dialogue="same\n", delay=9.0),
        outcome(third, Event.FAIL, dialogue="same\n"),
        outcome(other, Event.DELIVERED, dialogue="traced\n", traces=(7, 8)),
    ]
    store = Settlements(link, "w")
    await store.settle(mixed)
    await store.settle(mixed, again=True)
    said = db.execute(
        "SELECT message_id, lease_token, row_ids, traces, dialogue, ended_at FROM transcripts"
        " ORDER BY message_id"
    ).fetchall()
    assert said == [
        (1, first.token, [second.id, third.id], None, "same\n", NOW),
        (2, other.token, [other.id], [7, 8], "traced\n", NOW),
    ]
    assert fetch(db, "SELECT count(*) FROM attempts") == (4,)
    (plain,) = await claimed(db, link, 3)
    await store.settle([outcome(plain, Event.DELIVERED, dialogue="plain\n", traces=(7,))])
    assert fetch(db, "SELECT dialogue FROM transcripts WHERE message_id = 3") == ("plain\n",)
    db.execute("SET ROLE pgmta_reader")
    assert fetch(db, "SELECT count(*) FROM transcripts") == (3,)
    with pytest.raises(pg_errors.InsufficientPrivilege):
        db.execute("DELETE FROM transcripts")


async def test_queued_makes_and_drops_the_days(db: psycopg.Connection, link: Link) -> None:
    await keep_days(link, "transcripts", 86400)  # the template may be of yesterday
    (today,) = fetch(db, "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    db.execute(f"DROP TABLE transcripts_{today}".encode())
    db.execute("CREATE TABLE transcripts_20200101 PARTITION OF transcripts "
               "FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')")  # fmt: skip
    assert await keep_days(link, "transcripts", 86400) == (1, 1)


def item(**fields: Any) -> Item:
    return Item(**{
        "id": 1, "message_id": 1, "sender": "News@a.example", "recipient": "Bob@b.example",
        "domain": "b.example", "attempts": 1, "ts": NOW, "token": 1, **fields,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"domain": ["b.example"]}, True),
        ({"domain": ["c.example", "B.*"]}, True),
        ({"domain": ["example"]}, False),
        ({"domain": ["*.example"], "sender": ["eve@*"]}, False),
        ({"recipient": ["b*b@*.ex*e"], "sender": ["news@a.example"]}, True),
        ({"recipient": ["bob@b.example*b.example"]}, False),
        ({"metadata": ["order=7*"]}, True),
        ({"metadata": ["order=8", "absent="]}, True),
        ({"metadata": ["order="]}, False),
        ({"metadata": ["number=3"]}, True),
        ({"tenant": ["shop", "other"], "priority": ["<=3"]}, True),
        ({"tenant": ["Shop"]}, False),
        ({"priority": ["4..9"]}, False),
    ],
)
def test_a_trace_matches_by_patterns(wanted: dict[str, list[str]], matches: bool) -> None:
    row = item(metadata='{"order": "7-a", "number": 3}', tenant="shop", priority=3)
    assert Trace.of(1, wanted).matches(row) is matches
    row.metadata = f'{{"order": "7-a", "number": 3, "long": {"9" * 5000}}}'
    assert Trace.of(1, wanted).matches(row) is matches


async def test_a_malformed_trace_stops_no_other(db: psycopg.Connection, link: Link) -> None:
    deep = f'{{"domain": {"[" * 5000}{"]" * 5000}}}'
    for wanted in ('{"domain": "x"}', '{"x": []}', '{"metadata": ["k"]}', '{"domain": ["x"]}',
                   f'{{"domain": [{"9" * 5000}]}}', deep):  # fmt: skip
        db.execute("INSERT INTO traces (created_by, expires_at, wanted)"
                   " VALUES ('x', now() + interval '1 h', %s)", (wanted,))  # fmt: skip
    db.execute("INSERT INTO traces (created_by, expires_at, wanted) VALUES ('x', now(), '{}')")
    traces = Traces(link)
    assert [t.selection.condition() for t in await traces.active()] == ["(domain = 'x')"]
    db.execute("UPDATE traces SET expires_at = now() - interval '2 d' WHERE wanted = '{}'")
    await traces.remove_traces()
    assert fetch(db, "SELECT count(*) FROM traces") == (6,)


def test_the_recorder_sees_what_it_is_asked_for() -> None:
    result = Result(
        Event.DELIVERED, Reply(250, "2.0.0 Ok"), "mx:25", said=([(0, RECEIVED, b"x\n")], ())
    )
    recorder = AttemptRecorder()
    for event, kept in [(Event.DELIVERED, False), (Event.HAND_BACK, False), (Event.FAIL, True)]:
        found = outcome(item(), event)
        recorder.see(found, result)
        assert bool(found.dialogue) is kept
    recorder.set_traces([Trace.of(3, {"domain": ["b.example"]}), Trace.of(4, {"domain": ["c"]})])
    traced = outcome(item(), Event.DELIVERED)
    recorder.see(traced, result)
    assert (traced.traces, traced.dialogue.splitlines()[-1][-3:]) == ((3,), "< x")
    broken = outcome(item(metadata="["), Event.FAIL)
    recorder.set_traces([Trace.of(3, {"metadata": ["k=v"]})])
    recorder.see(broken, result)  # raises nothing
    recorder.set_traces([])
    assert [recorder.on, AttemptRecorder(lines=True).on] == [False, True]


async def test_an_operator_traces_lists_and_stops(
    db: psycopg.Connection, link: Link, command: Command, database: str
) -> None:
    run = partial(command, "trace")
    assert run().exit_code == 2
    assert run("--domain", "x", "--list").exit_code == 2
    assert run("--domain", "x", "--for", "2d").exit_code == 2
    assert "expected key=value" in run("--metadata", "x").stderr
    assert run("--stop", "1").exit_code == 1
    assert run("--list").exit_code == 0  # none, as other lists
    begun = run("--domain", "B.Example", "--for", "1h", "--background")
    assert begun.exit_code == 0, begun.output
    assert "no delivering worker runs" in begun.stderr
    recorder = AttemptRecorder()
    await TraceWatch(Traces(link), [recorder.set_traces]).read_traces()
    (mail,) = await claimed(db, link, 1)
    delivered = outcome(mail, Event.DELIVERED, facts=TLS, seconds=0.5)
    said: list[Entry] = [(0.0, NOTE, "connect"), (0.0, RECEIVED, b"220 \x1b[2J hop\r\n")]
    delivered.ended = datetime.now(UTC)
    recorder.see(delivered, Result(Event.DELIVERED, delivered.reply, said=(said, ())))
    await Settlements(link, "w").settle([delivered])
    (listed,) = json.loads(run("--list", "--json").stdout)
    assert (listed["wanted"], listed["transcripts"]) == ({"domain": ["b.example"]}, 1)
    operator = await connect_operator(acting(database, "pgmta_operator"))
    orders = TraceOrders(operator)
    (fresh,) = await orders.fresh(listed["id"], NOW)
    assert (fresh["event"], fresh["recipient"], fresh["address"]) == (
        "delivered", "r0@b.example", "192.0.2.1",
    )  # fmt: skip
    assert await orders.fresh(listed["id"], NOW) == []
    number = (await orders.start({"domain": ["x"]}, 60, "me"))["id"]
    assert await orders.lasts(number)
    assert await orders.stop(number, "me")
    assert not await orders.lasts(number)
    await operator.close()
    assert run("--stop", str(listed["id"])).exit_code == 0
    await TraceWatch(Traces(link), [recorder.set_traces]).read_traces()
    assert not recorder.on
    actions = [action for (action,) in db.execute("SELECT action FROM audit ORDER BY id")]
    assert actions == ["trace start", "trace start", "trace stop", "trace stop"]
    shown = command("show", "1", "--transcript").stdout
    assert (
        "mx.example:25 [192.0.2.1]  TLSv1.3 dane  dns 250ms, connect 750ms, tls 2.0s, mail 500ms"
        in shown
    )
    assert "< 220 \ufffd[2J hop" in shown
    machine = command("show", "1", "--transcript", "--json")
    assert json.loads(machine.stdout)["transcripts"][0]["traces"] == [listed["id"]]
