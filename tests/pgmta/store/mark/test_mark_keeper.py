"""Claims behind a held snapshot: they read little, and still find each row."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from pgmta.postgres.link import Link
from pgmta.store.mark import mark as marks
from pgmta.store.mark import mark_keeper, ticks
from pgmta.store.queue.claim import SESSION, Claims
from tests.support.rows import column, fetch, message, row
from tests.support.waiting import eventually

READ = """
    SELECT sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) + coalesce(idx_blks_hit, 0)
        + coalesce(idx_blks_read, 0))::bigint
    FROM pg_statio_user_tables WHERE relname LIKE 'queue%%'
"""
PUT = """
    INSERT INTO queue (message_id, sender, sender_domain, recipient, domain, priority, metadata)
    SELECT 1, '', '', n || '@r.example', 'd' || n %% 50 || '.example', n %% 3,
        CASE n %% 4 WHEN 3 THEN jsonb_build_object('_partid', '7') ELSE '{}' END
    FROM generate_series(1, %s) AS n RETURNING id
"""
DELETE = "DELETE FROM queue WHERE status <> 'HOLD'"
SUBMIT = """
    SELECT submit('', ARRAY['r@submitted.example'], E'Subject: x\r\n\r\nx\r\n'::bytea,
        priority => 1)
"""
CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks and looks whenever a test wants them, and no slack."""
    for name, value in {
        "DEAR_S": -1.0, "PROBE_INTERVAL_S": 0.0, "TICK_INTERVAL_S": 0.0,
        "MIN_LOOK_INTERVAL_S": 1000.0, "MAX_LOOK_INTERVAL_S": 1000.0,
    }.items():  # fmt: skip
        monkeypatch.setattr(mark_keeper, name, value)
    monkeypatch.setattr(ticks, "SLACK_S", 0.0)


@pytest.fixture
def always(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark without dead rows."""
    monkeypatch.setattr(mark_keeper, "DEAR_BLOCKS", -1_000_000)


@pytest.fixture
def held(database: str, db: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A snapshot that is held."""
    row(db, message(db, 1), status="HOLD")  # keeps the message
    with psycopg.connect(database) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        yield holder


def put(db: psycopg.Connection, count: int) -> list[int]:
    """Rows that are due, of 50 domains and three priorities."""
    return [number for (number,) in db.execute(PUT, (count,))]


def die(db: psycopg.Connection, count: int) -> None:
    """Rows that come and go."""
    put(db, count)
    db.execute(DELETE)


async def take(claims: Claims, limit: int = 1000, busy: tuple[str, ...] = ()) -> list[int]:
    """The ids of a claim's rows, sorted."""
    return sorted(item.id for item in (await claims.claim(limit, [*busy])).items)


async def move(db: psycopg.Connection, *all_claims: Claims) -> None:
    """Let the marks move on to now; other tests have transactions that hold them for a while."""
    (now,) = fetch(db, CLOCK)
    for claims in all_claims:
        keeper = claims._keeper
        if not keeper.mark:
            await claims.claim(0, [])

        async def moved(keeper: mark_keeper.MarkKeeper = keeper) -> bool:
            await keeper.attend()
            return keeper.mark is not None and keeper.mark.moment > now

        await eventually(moved)


async def look(claims: Claims) -> None:
    """Let a whole look follow."""
    claims._keeper._looked = -math.inf
    await claims._keeper.attend()


async def read(db: psycopg.Connection, link: Link) -> int:
    """The blocks of the queue that were read so far."""
    await link.run("SELECT pg_stat_force_next_flush()")
    db.execute("SELECT pg_stat_force_next_flush()")  # or what it wrote may count a second later
    db.execute("SELECT pg_stat_clear_snapshot()")
    return int(fetch(db, READ)[0])


async def test_a_claim_reads_as_much_beside_many_dead_rows_as_beside_few(
    quick: None, db: psycopg.Connection, link: Link, held: psycopg.Connection
) -> None:
    """And after the snapshot the mark goes."""
    for name in ("queue_def_def", "queue_hold"):  # its reads would count
        db.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    die(db, 20_000)
    claims = Claims(link, "w", 60, siblings=0)
    costs = list[int]()
    for _ in range(2):
        await move(db, claims)
        for number, limit in ((20, 20), (500, 50)):  # by time; by domain
            put(db, number)
            before = await read(db, link)
            assert len(await take(claims, limit)) == limit
            costs.append(await read(db, link) - before)
            while await take(claims):
                pass
            db.execute(DELETE)
        die(db, 20_000)
    assert costs[2] < 1.5 * costs[0]
    assert costs[3] < 1.5 * costs[1]
    held.rollback()
    db.execute("VACUUM queue")
    await look(claims)
    assert not claims._keeper.mark


async def test_without_dead_rows_claims_are_as_without_marks(
    quick: None, db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow they are: one statement each, and a look now and then."""
    monkeypatch.setattr(mark_keeper, "PROBE_INTERVAL_S", 1000.0)
    message(db, 1)
    put(db, 2000)
    claims = Claims(link, "w", 60, siblings=0)
    texts = list[bytes]()
    run = link.run

    async def noted(query: bytes, *args: object) -> object:
        texts.append(query)
        return await run(query, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(link, "run", noted)
    for _ in range(30):
        assert await take(claims, 20)
    plain = {claims._statements[name] for name in ("claim_by_time", "claim_by_domain")}
    assert not any(text.count(b"mark") + text.count(b"floors") for text in plain)
    assert sum(text not in plain for text in texts) <= 3, "the rules, and two looks"


async def test_many_partitions_are_not_many_dead_rows(
    quick: None, database: str, db: psycopg.Connection, link: Link, held: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And dead rows are found beside them, by looks over the connection without a time limit."""
    for n in range(40):
        db.execute(f"CREATE TABLE queue_def_{n} PARTITION OF queue_def FOR VALUES IN ('{n}')")
    put(db, 200)
    looks = Link(database, "looks", SESSION)
    claims = Claims(link, "w", 60, siblings=0, looks=looks)
    keeper, run = claims._keeper, link.run

    async def noted(query: bytes, *args: object) -> object:
        assert b"pg_stat_get_xact" not in query
        return await run(query, *args)  # type: ignore[arg-type]

    async def probe() -> bool:
        await claims.claim(0, [])
        keeper.claimed(1.0, by_domain=True)
        await keeper.attend()
        assert keeper._looking
        await keeper._looking
        return keeper._active

    monkeypatch.setattr(link, "run", noted)
    assert not await probe()
    put(db, 1000)
    assert not await probe(), "with a backlog"
    die(db, 40_000)
    for count in (200, 5000):
        put(db, count)
        assert await probe()
        await move(db, claims)
        assert keeper._looking
        await keeper._looking
        assert keeper.mark, "after a whole look"
        db.execute(DELETE)
        keeper._end()
    await looks.close()


@pytest.mark.parametrize("number", [1, 2, 5, 12])
def test_workers_take_turns_with_whole_looks(number: int, link: Link) -> None:
    keepers = [mark_keeper.MarkKeeper(link, "w", 9) for _ in range(number)]
    for place, keeper in enumerate(keepers):
        keeper.turn = lambda place=place: (place, number)  # type: ignore[misc]
        keeper._looked, keeper._cost = 0.0, 0.6 + 0.3 * place / number
    last, turns = 0.0, min(number, mark_keeper.MAX_LOOK_TURNS)
    for step in range(2000):
        clock = step / 2
        for keeper in keepers:
            keeper._ticks._last = step, clock
            if keeper._whole_look_due():
                assert 20 <= clock - keeper._looked <= 20 * turns + 1
                last = keeper._looked = clock
        assert clock - last <= 20 + 1
    assert min(keeper._looked for keeper in keepers) >= clock - 20 * turns


@pytest.mark.parametrize("each", [0, 5])
@pytest.mark.parametrize("backlog", [False, True])
async def test_a_row_that_is_older_than_the_mark_is_claimed(
    backlog: bool,
    each: int,
    always: None,
    database: str,
    db: psycopg.Connection,
    link: Link,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ticks, "PASS_OVER_S", 1000.0)
    if backlog:
        monkeypatch.setattr(marks, "MAX_IDS", 0)
    message(db, 1)
    db.execute("SELECT nextval('message_ids')")
    held = row(db, 1, status="HOLD", priority=1)
    mine, other = (Claims(link, name, 60, siblings=0, urgent=3, each=each) for name in ("w", "v"))
    await move(db, mine, other)
    leased = row(db, 1, priority=1)
    assert await take(mine) == [leased]
    left = row(db, 1, domain="busy.example", priority=1)
    with psycopg.connect(database) as reads, psycopg.connect(database) as writes:
        reads.execute("SELECT 1")
        await move(db, mine, other)
        begun = row(writes, 1, priority=1)
        for claims in (mine, other):
            await claims._keeper.attend()
            assert await take(claims, busy=("busy.example",)) == []
        late = row(reads, 1, priority=1)
        reads.execute(SUBMIT)
        reads.commit()
        (submitted,) = fetch(db, "SELECT id FROM queue WHERE domain = 'submitted.example'")
        assert await take(mine, busy=("busy.example",)) == [late, submitted]
        db.execute("DELETE FROM queue WHERE id = %s", (submitted,))
        for claims in (mine, other) * 3:
            await claims._keeper.attend()
        writes.commit()
    await move(db, mine, other)
    assert bool(mine._keeper.has_pairs) == backlog
    assert await take(mine, busy=("busy.example",)) == [begun]
    assert await take(other) == [left]
    await move(db, mine, other)
    db.execute("UPDATE queue SET status = 'QUEUED' WHERE id = %s", (held,))
    assert await take(mine) == [held]
    await move(db, mine, other)
    assert await mine.leases.give_back([held, late, begun]) == 1
    if backlog:
        await move(db, mine)
    assert await take(mine) == [leased], "known at once"
    await mine.leases.give_back([held, late, begun])
    await move(db, other)
    if backlog:
        await look(other)
    assert await take(other) == [leased], "known after a look"
    assert await take(mine) == []


async def test_a_whole_look_finds_what_came_late(
    always: None, database: str, db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "PASS_OVER_S", -1.0)
    message(db, 1)
    claims = Claims(link, "w", 60, siblings=0)
    await move(db, claims)
    old = row(db, 1, due=-3600)
    lost = row(db, 1, due=-3600, status="SENDING", lease=-1)
    assert await take(claims) == []
    await look(claims)
    assert await take(claims) == [old, lost]
    with psycopg.connect(database) as writes:
        passed = row(writes, 1)
        await move(db, claims)
        writes.commit()
    assert await take(claims) == []
    monkeypatch.setattr(mark_keeper, "MIN_LOOK_INTERVAL_S", 0.001)
    await claims._keeper.attend()
    assert await take(claims) == [passed]


async def test_a_row_of_long_ago_is_claimed_in_a_backlog(
    always: None, db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "MAX_IDS", 0)
    message(db, 1)
    claims = Claims(link, "w", 60, siblings=0)
    await move(db, claims)
    old = row(db, 1, next_attempt="1526-06-07 01:02:03.456789+00")
    await look(claims)
    assert claims._keeper.has_pairs
    assert await take(claims) == [old]


async def test_a_mark_goes_when_the_clock_goes_back(
    always: None, db: psycopg.Connection, link: Link
) -> None:
    message(db, 1)
    claims = Claims(link, "w", 60, siblings=0)
    await move(db, claims)
    claims._keeper._ticks._last = 0, math.inf
    late = row(db, 1, due=-3600)
    assert await take(claims) == [late]
    assert not claims._keeper.mark


@pytest.mark.parametrize("each", [0, 5])
async def test_each_row_is_claimed_whatever_happens_to_it(
    each: int, always: None, database: str, db: psycopg.Connection, link: Link,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No whole look comes: only the mark knows old rows."""
    monkeypatch.setattr(ticks, "PASS_OVER_S", 1000.0)
    monkeypatch.setattr(marks, "MAX_IDS", 30)
    db.execute("CREATE TABLE queue_def_7 PARTITION OF queue_def FOR VALUES IN ('7')")
    row(db, message(db, 1), status="HOLD", hold_reason="stays")
    dice = random.Random(each)
    claims = Claims(link, "w", 60, siblings=0, urgent=3, each=each)
    await move(db, claims)
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(database)) for _ in range(3)]
        for writer in writers:
            writer.execute("SET idle_in_transaction_session_timeout = 0")
        backlogs = 0
        for _ in range(250):
            match dice.randrange(10):
                case 0 | 1 | 2:
                    put(dice.choice(writers), dice.choice((1, 1, 5, 60)))
                case 3 | 4:
                    dice.choice(writers).commit()
                case 5:
                    dice.choice(writers).rollback()
                case 6:
                    db.execute(
                        "UPDATE queue SET status = CASE status WHEN 'HOLD' THEN 'QUEUED'"
                        " ELSE 'HOLD' END WHERE id %% 7 = %s AND status IN ('QUEUED', 'HOLD')"
                        " AND hold_reason IS DISTINCT FROM 'stays'",
                        (dice.randrange(7),),
                    )
                case 7:
                    known = column(db, "SELECT id FROM queue WHERE id % 3 > 0")
                    await claims.leases.give_back(known)
                case 8:
                    db.execute("DELETE FROM queue WHERE status = 'SENDING' AND id % 2 = 0")
                case _:
                    busy = tuple(f"d{n}.example" for n in range(dice.choice((0, 25))))
                    await take(claims, dice.choice((1, 20, 100)), busy)
            await claims._keeper.attend()
            backlogs += claims._keeper.has_pairs
    db.execute(
        "UPDATE queue SET status = 'QUEUED' WHERE status = 'HOLD' AND hold_reason <> 'stays'"
    )
    assert 0 < backlogs < 250
    await move(db, claims)
    while await take(claims):
        pass
    assert column(db, "SELECT id FROM queue WHERE status <> 'SENDING'") == [1]
