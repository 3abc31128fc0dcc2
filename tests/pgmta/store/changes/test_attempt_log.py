"""The log is followed without gaps and without doubles, whatever the order of commits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgmta.store.changes.attempt_log import AttemptLog, of_attempts
from pgmta.store.changes.search import Wanted

ENTRY = """
INSERT INTO attempts (started_at, ended_at, row_id, message_id, lease_token, attempt, code,
    event, sender, recipient, domain, worker, host, command, enhanced, reply, class, tenant)
VALUES (now(), clock_timestamp() - %(ago)s::interval, %(n)s, %(n)s, 1, 1, 450, %(event)s,
    's@a.example', %(recipient)s, 'b.example', 'w', %(host)s, '', '', 'words', 'greylisted',
    %(tenant)s)
"""


def put(db: psycopg.Connection, n: int, ago: str = "0s", **changes: Any) -> None:
    usual = {
        "event": "deferred",
        "recipient": "r@b.example",
        "host": "mx.b.example:25",
        "tenant": "",
    }
    db.execute(ENTRY, {**usual, **changes, "n": n, "ago": ago})


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["row_id"] for row in rows]


@pytest.fixture
def session(database: str) -> Iterator[Callable[[], psycopg.Connection]]:
    """Opens further sessions, each with a transaction."""
    opened: list[psycopg.Connection] = []

    def connect() -> psycopg.Connection:
        opened.append(psycopg.connect(database))
        opened[-1].execute("SET search_path = pgmta")
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


async def test_the_last_entries_come_first_in_order(database: str, db: psycopg.Connection) -> None:
    db.execute("SET search_path = pgmta")
    for n in range(20):
        put(db, n, f"{200 - n} s")
    put(db, 99, "2 days")
    async with AttemptLog(database, Wanted()) as log:
        assert ids(await log.last(3600, 5)) == [15, 16, 17, 18, 19]
        assert await log.fresh() == []
    async with AttemptLog(database, Wanted()) as log:
        assert ids(await log.last(3 * 86400, None)) == [99, *range(20)]


async def test_a_commit_that_comes_late_is_not_missed(
    database: str, db: psycopg.Connection, session: Callable[[], psycopg.Connection]
) -> None:
    db.execute("SET search_path = pgmta")
    slow, nested = session(), session()
    put(slow, 1)
    nested.execute("SAVEPOINT a")  # gets another number, which no snapshot names
    put(nested, 2)
    nested.execute("RELEASE a")
    put(db, 3)
    async with AttemptLog(database, Wanted()) as log:
        assert ids(await log.last(3600, 10)) == [3]
        put(db, 4)
        assert ids(await log.fresh()) == [4]
        slow.commit()
        assert ids(await log.fresh()) == [1]
        put(db, 5)
        nested.commit()
        assert sorted(ids(await log.fresh())) == [2, 5]
        db.execute("UPDATE attempts SET returned_at = now(), returned = 'x', class = 'other'")
        assert await log.fresh() == []


async def test_entries_that_were_cut_off_do_not_come_beside_a_long_transaction(
    database: str, db: psycopg.Connection, session: Callable[[], psycopg.Connection]
) -> None:
    db.execute("SET search_path = pgmta")
    slow = session()
    put(slow, 99)
    for n in range(50):
        put(db, n, f"{50 - n} s")
    wanted = Wanted()
    async with (
        AttemptLog(database, wanted) as two,
        AttemptLog(database, wanted) as none,
        AttemptLog(database, wanted) as recent,
    ):
        assert ids(await two.last(3600, 2)) == [48, 49]
        assert await none.last(3600, 0) == []
        assert ids(await recent.last(5.5, None)) == [45, 46, 47, 48, 49]
        put(db, 50)
        for log in (two, none, recent):
            assert ids(await log.fresh()) == [50]
        slow.commit()
        for log in (two, none, recent):
            assert ids(await log.fresh()) == [99]


async def test_nothing_is_lost_or_doubled_in_any_order(
    database: str, session: Callable[[], psycopg.Connection]
) -> None:
    chance = random.Random(32)
    sessions = [session() for _ in range(5)]
    seen: list[int] = []
    async with AttemptLog(database, Wanted()) as log:
        await log.last(3600, 0)
        for n in range(300):
            put(chance.choice(sessions), n)
            if chance.random() < 0.3:
                chance.choice(sessions).commit()
            if chance.random() < 0.3:
                seen += ids(await log.fresh())
        for each in sessions:
            each.commit()
        seen += ids(await log.fresh())
    assert sorted(seen) == list(range(300))


async def test_entries_that_waited_for_the_database_come_after_it(
    database: str, db: psycopg.Connection
) -> None:
    db.execute("SET search_path = pgmta")
    async with AttemptLog(database, Wanted()) as log:
        await log.last(3600, 0)
        db.execute("""
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'pgmta queuectl' AND datname = current_database()
        """)
        with pytest.raises(psycopg.OperationalError):
            await log.fresh()
        put(db, 1, "50 s")
        await log.connect()
        put(db, 2)
        assert ids(await log.fresh()) == [1, 2]
        assert await log.fresh() == []


async def test_filters_choose_entries(database: str, db: psycopg.Connection) -> None:
    db.execute("SET search_path = pgmta")
    put(db, 1)
    put(db, 2, event="delivered", tenant="shop")
    put(db, 3, host="mx.b.example:2525", recipient="%x*{where}@b.example")

    async def found(**fields: tuple[str, ...]) -> list[int]:
        return await of(Wanted(more=of_attempts(fields)))

    async def of(wanted: Wanted) -> list[int]:
        async with AttemptLog(database, wanted) as log:
            return sorted(ids(await log.last(3600, None)))

    assert await found(event=("delivered",)) == [2]
    assert await found(host=("mx.b.example",)) == [1, 2, 3]
    assert await found(host=("mx.b.example:25",), event=("deferred",)) == [1]
    assert await found(host=("*:2525",)) == [3]
    assert await found(**{"class": ("grey*",), "domain": ("B.example",)}) == [1, 2, 3]
    assert await of(Wanted(tenant=("shop",))) == [2]
    assert await of(Wanted(recipient=("%x*",))) == [3]
