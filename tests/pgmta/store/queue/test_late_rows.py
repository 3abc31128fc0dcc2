"""Rows that come late: each that is committed and due is claimed, however its transaction went.

The model knows nothing of how claims look for rows. Writers read first and write later, commit
late, prepare, roll back, release holds; workers hand back, defer, die. Run it for longer with
--late-seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import LiteralString

import psycopg
import pytest

from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.mark import mark_keeper, ticks
from pgmta.store.queue.claim import SESSION, Claims

WRITERS, WORKERS = 10, 3
DOMAINS = [f"d{n}.example" for n in range(8)]
BIG = "big.example"
BACKLOG_ROWS = 1500  # more than a worker remembers by their ids
LEASE_S, SHORT_LEASE_S = 60.0, 1.0
LAST_ROUNDS = 60  # of all workers, after the last writer
# A message for each row: rows of one come together, and wait for each other when they go.
PUT = """
    WITH made AS (
        INSERT INTO messages (id, size, trace, body)
        SELECT nextval('message_ids'), 4, 'T: t', 'body' FROM unnest(%(domains)s::text[])
        RETURNING id
    ), numbered AS (
        SELECT id, row_number() OVER () AS n FROM made
    )
    INSERT INTO queue (message_id, sender, recipient, domain, priority)
    SELECT id, '', 'r@' || domain, domain, priority FROM numbered
    JOIN unnest(%(domains)s::text[], %(levels)s::smallint[]) WITH ORDINALITY
        AS each (domain, priority, n) USING (n)
"""
PUT_AT = """
    WITH made AS (
        INSERT INTO messages (id, size, trace, body)
        VALUES (nextval('message_ids'), 4, 'T: t', 'body') RETURNING id
    )
    INSERT INTO queue (message_id, sender, recipient, domain, status, hold_reason, next_attempt)
    SELECT id, '', 'r@b.example', 'b.example', %(status)s,
        CASE WHEN %(status)s = 'HOLD' THEN 'test' END,
        clock_timestamp() + make_interval(secs => %(seconds)s) FROM made RETURNING id
"""
SUBMIT = "SELECT submit('s@a.example', ARRAY['r@' || %s], E'Subject: x\r\n\r\nx\r\n'::bytea)"
FREE: LiteralString = (
    "lease_owner = NULL, lease_since = NULL, lease_token = NULL, lease_until = NULL"
)
HAND_BACK = f"""
    UPDATE queue SET status = 'QUEUED', attempts = attempts - 1, {FREE}
    WHERE id = ANY (%s) AND status = 'SENDING' RETURNING id
"""
DEFER = f"""
    UPDATE queue SET status = 'DEFERRED', next_attempt = now() + make_interval(secs => %s), {FREE}
    WHERE id = ANY (%s) AND status = 'SENDING' RETURNING id
"""
DELIVER = "DELETE FROM queue WHERE id = ANY (%s) AND status = 'SENDING' RETURNING id"
LEFT = "SELECT id, domain, status, next_attempt FROM queue"


class Model:
    """Leases as the workers know them, and what every part draws."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.dice = random.Random(seed)
        self.end = time.monotonic() + seconds
        self.half = time.monotonic() + seconds / 2
        self.leases: dict[int, float] = {}
        self.claims = self.rows = 0

    @property
    def open(self) -> bool:
        return time.monotonic() < self.end

    async def pause(self, most: float) -> None:
        # a transaction stays open for long: nothing happens that could be waited for
        await asyncio.sleep(self.dice.random() ** 2 * most)  # noqa: TID251

    def lease(self, items: list[Item], asked: float, seconds: float) -> None:
        """Note a claim: nobody else may have one of its rows."""
        now = time.monotonic()
        for item in items:
            assert self.leases.get(item.id, 0.0) < now, f"row {item.id} is claimed twice"
            self.leases[item.id] = asked + seconds
        self.claims += 1
        self.rows += len(items)

    def free(self, ids: list[int]) -> None:
        """Note that rows are about to be free: another worker may claim them before we know."""
        for each in ids:
            self.leases.pop(each, None)


class Writer:
    """A program that puts rows in, in all ways; `name` is that of its prepared transactions."""

    def __init__(self, model: Model, db: psycopg.AsyncConnection, name: str) -> None:
        self.model, self.db, self.name = model, db, name
        self.ways: list[Callable[[], Awaitable[None]]] = [
            self.plain, self.submit, self.read_first, self.late, self.savepoints, self.prepare,
            self.release,
        ]  # fmt: skip

    async def run(self) -> None:
        while self.model.open:
            await self.model.dice.choice(self.ways)()
            await self.model.pause(0.3)

    async def _put(self, most: int = 5) -> None:
        dice = self.model.dice
        number = dice.randint(1, most)
        domains = dice.choices(DOMAINS, k=number)
        levels = [dice.choice((0, 3, 5, 5, 5, 9)) for _ in domains]
        await self.db.execute(PUT, {"domains": domains, "levels": levels})

    async def _end(self) -> None:
        await (self.db.rollback() if self.model.dice.random() < 0.2 else self.db.commit())

    async def plain(self) -> None:
        await self._put(20)
        await self.db.commit()

    async def _submit(self) -> None:
        await self.db.execute(SUBMIT, [self.model.dice.choice(DOMAINS)])

    async def submit(self) -> None:
        await self._submit()
        await self.model.pause(0.5)
        await self._end()

    async def read_first(self) -> None:
        level: LiteralString = self.model.dice.choice(("READ COMMITTED", "REPEATABLE READ"))
        await self.db.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        await self.db.execute("SELECT count(*) FROM queue WHERE id < 10")
        await self.model.pause(4)
        await self._put()
        await self._submit()
        await self.model.pause(2)
        await self._end()

    async def late(self) -> None:
        await self._put()
        await self.model.pause(5)
        await self._put()
        await self._submit()
        await self._end()

    async def savepoints(self) -> None:
        await self.db.execute("SELECT 1")
        for _ in range(self.model.dice.randint(1, 4)):
            await self.db.execute("SAVEPOINT one")
            await self._put()
            await self.model.pause(1)
            if self.model.dice.random() < 0.4:
                await self.db.execute("ROLLBACK TO one")
        await self._end()

    async def prepare(self) -> None:
        await self.model.pause(1)
        await self._put()
        await self.db.execute(f"PREPARE TRANSACTION '{self.name}'".encode())
        await self.db.commit()
        await self.model.pause(4)
        word = "ROLLBACK" if self.model.dice.random() < 0.2 else "COMMIT"
        await self.db.set_autocommit(True)
        await self.db.execute(f"{word} PREPARED '{self.name}'".encode())
        await self.db.set_autocommit(False)

    async def _put_at(self, status: str, seconds: float) -> int:
        params = {"status": status, "seconds": seconds}
        made = await (await self.db.execute(PUT_AT, params)).fetchone()
        assert made is not None
        return int(made[0])

    async def release(self) -> None:
        number = await self._put_at("HOLD", -3600)
        await self.db.commit()
        await self.model.pause(1)
        await self.db.execute("UPDATE queue SET status = 'QUEUED' WHERE id = %s", [number])
        await self.model.pause(2)
        await self.db.commit()

    async def old(self) -> None:
        await self._put_at("QUEUED", self.model.dice.choice((-0.5, -3, -100, -1e6)))
        await self.model.pause(1)
        await self.db.commit()

    async def retry(self) -> None:
        number = await self._put_at("DEFERRED", 3600)
        await self.db.commit()
        await self.model.pause(1)
        await self.db.execute(
            "UPDATE queue SET next_attempt = now() - make_interval(secs => %s) WHERE id = %s",
            (self.model.dice.choice((0, 1, 10_000)), number),
        )
        await self.model.pause(1)
        await self.db.commit()


class Worker:
    """A worker that settles what it claims; one that `dies` leaves its leases, and begins anew."""

    def __init__(self, model: Model, uri: str, place: int, db: psycopg.AsyncConnection) -> None:
        self.model, self.place, self.db = model, place, db
        self.link, self.looks = (Link(uri, f"w{place} {name}", SESSION) for name in ("", "looks"))
        self.dies = False
        self.claims = self.begin()

    def begin(self) -> Claims:
        self.lease = SHORT_LEASE_S if self.dies else LEASE_S
        looks = self.looks if self.place else None
        claims = Claims(self.link, f"w{self.place}", self.lease, siblings=0, looks=looks)
        claims.take_turns(lambda: (self.place, WORKERS))
        return claims

    async def close(self) -> None:
        await self.link.close()
        await self.looks.close()

    async def run(self) -> None:
        dice = self.model.dice
        while self.model.open:
            busy = dice.sample(DOMAINS, dice.choice((0, 0, 1, 4)))
            if time.monotonic() < self.model.half:
                busy.append(BIG)
            limit = dice.choice((1, 5, 20, 100))
            asked = time.monotonic()
            claim = await self.claims.claim(limit, busy, overdue=dice.choice((0.0, 0.0, 0.1)))
            assert not {item.domain for item in claim.items} & set(busy)
            self.model.lease(claim.items, asked, self.lease)
            if self.dies and dice.random() < 0.1:
                self.claims = self.begin()
                continue
            await self.settle([item.id for item in claim.items])
            await self.model.pause(0.1)

    async def settle(self, ids: list[int]) -> None:
        dice = self.model.dice
        dice.shuffle(ids)
        cut, end = sorted(dice.randint(0, len(ids)) for _ in range(2))
        if dice.random() < 0.5:
            cut, end = len(ids), len(ids)
        if ids[:cut]:
            await self.db.execute(DELIVER, [ids[:cut]])
        if some := ids[cut:end]:
            self.model.free(some)
            await self.db.execute(DEFER, (dice.random(), some))
        if some := ids[end:]:
            self.model.free(some)
            cursor = await self.db.execute(HAND_BACK, [some])
            self.claims.give_back([each for (each,) in await cursor.fetchall()])

    async def finish(self) -> None:
        """Deliver what is there now."""
        asked = time.monotonic()
        claim = await self.claims.claim(100, [])
        self.model.lease(claim.items, asked, self.lease)
        await self.db.execute(DELIVER, [[item.id for item in claim.items]])


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims take all claims for dear ones."""
    monkeypatch.setattr(mark_keeper, "DEAR_S", -1.0)
    monkeypatch.setattr(mark_keeper, "DEAR_BLOCKS", -1_000_000)
    monkeypatch.setattr(mark_keeper, "PROBE_INTERVAL_S", 0.0)
    monkeypatch.setattr(mark_keeper, "TICK_INTERVAL_S", 0.05)


def set_looks(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have whole looks so often."""
    for name in ("MIN_LOOK_INTERVAL_S", "MAX_LOOK_INTERVAL_S"):
        monkeypatch.setattr(mark_keeper, name, seconds)


async def play(uri: str, db: psycopg.Connection, seed: int, seconds: float, *, hard: bool) -> None:
    """Let all work, and see that nothing is left."""
    print(f"seed {seed}")
    model = Model(seed, seconds)
    if model.dice.random() < 0.5:
        db.execute(PUT, {"domains": [BIG] * BACKLOG_ROWS, "levels": [5] * BACKLOG_ROWS})
    async with AsyncExitStack() as stack:
        options = "-c idle_in_transaction_session_timeout=0"
        holder = stack.enter_context(psycopg.connect(uri, options=options))
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM queue")

        async def connect(*, autocommit: bool = False) -> psycopg.AsyncConnection:
            connection = await psycopg.AsyncConnection.connect(uri, autocommit=autocommit)
            await stack.enter_async_context(connection)
            return connection

        name = str(db.info.dbname)
        writers = [Writer(model, await connect(), f"{name} {n}") for n in range(WRITERS)]
        workers = [Worker(model, uri, n, await connect(autocommit=True)) for n in range(WORKERS)]
        for worker in workers:
            stack.push_async_callback(worker.close)
        if hard:
            for writer in writers:
                writer.ways += [writer.old, writer.retry]
            workers[0].dies = True
            workers[0].claims = workers[0].begin()
        async with asyncio.TaskGroup() as group:
            for work in [*(each.run() for each in writers), *(each.run() for each in workers)]:
                group.create_task(work)
        for _ in range(LAST_ROUNDS):
            for worker in workers:
                await worker.finish()
            if not (left := db.execute(LEFT).fetchall()):
                break
            await model.pause(0.3)
    assert not left, f"seed {seed}: {len(left)} rows are left, such as {left[:5]}"
    print(f"{model.rows} rows in {model.claims} claims")


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    """How long it plays."""
    return float(request.config.getoption("--late-seconds"))


@pytest.mark.slow
async def test_rows_that_come_late_are_found_without_a_look_from_the_beginning(
    database: str, db: psycopg.Connection, dear: None, seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    set_looks(monkeypatch, 10_000)
    await play(database, db, random.randrange(1 << 32), seconds, hard=False)


@pytest.mark.slow
async def test_rows_with_an_old_time_and_those_of_a_dead_worker_are_found_by_a_look(
    database: str, db: psycopg.Connection, dear: None, seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    set_looks(monkeypatch, 0.3)
    monkeypatch.setattr(ticks, "PASS_OVER_S", 1.0)
    await play(database, db, random.randrange(1 << 32), seconds, hard=True)
