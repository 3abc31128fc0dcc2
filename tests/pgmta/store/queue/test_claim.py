"""Claims: exactly the due rows, in order, to one worker each."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.expired_leases import take_lost
from pgmta.store.queue.lease import RowLeases
from tests.support.rows import column, fetch, message, row


def fill(db: psycopg.Connection, count: int, messages: int = 20) -> None:
    """Rows that are all due, of all priorities."""
    for number in range(messages):
        message(db, number)
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, priority, next_attempt) "
        "SELECT n %% %s, '', n || '@b.example', 'b.example', n %% 10, "
        "now() - make_interval(secs => n %% 7) FROM generate_series(1, %s) AS n",
        (messages, count),
    )


async def test_two_workers_never_get_the_same_row(database: str, db: psycopg.Connection) -> None:
    fill(db, 600)
    links = [Link(database, f"test {n}", SESSION) for n in range(4)]
    taken: list[list[Item]] = [[] for _ in links]

    async def work(number: int) -> None:
        claims = Claims(links[number], f"worker {number}", 60, siblings=0)
        dice = random.Random(number)
        misses = 0
        while misses < 3:
            limit = dice.randint(1, 25)
            got = (await claims.claim(limit, [])).items
            assert len(got) <= limit
            taken[number] += got
            misses = 0 if got else misses + 1

    await asyncio.gather(*(work(n) for n in range(len(links))))
    for link in links:
        await link.close()
    everything = [item.id for items in taken for item in items]
    assert sorted(everything) == column(db, "SELECT id FROM queue ORDER BY id")
    assert all(item.attempts == 1 for items in taken for item in items)
    for number, items in enumerate(taken):
        owned = column(db, "SELECT id FROM queue WHERE lease_owner = %s", f"worker {number}")
        assert sorted(item.id for item in items) == sorted(owned)
    assert column(db, "SELECT 1 FROM attempts") == []


async def test_limit_is_exact_and_priority_then_time_decide(
    db: psycopg.Connection, link: Link
) -> None:
    fill(db, 200)
    order = column(db, "SELECT id FROM queue ORDER BY priority, next_attempt, id")
    keys: dict[int, str] = dict(
        db.execute("SELECT id, (priority, next_attempt)::text FROM queue").fetchall()
    )
    claims = Claims(link, "w", 60, siblings=0)
    tokens = set()
    for limit in (1, 7, 19, 20, 33, 100, 100):
        got = (await claims.claim(limit, [])).items
        expected, order = order[:limit], order[limit:]
        assert sorted(keys[item.id] for item in got) == sorted(keys[i] for i in expected)
        tokens |= {item.token for item in got}
    assert order == []
    assert len(tokens) == 7, "each claim has a new token"


async def test_only_due_rows_of_free_domains_that_match_where(
    db: psycopg.Connection, link: Link
) -> None:
    message(db, 1)
    db.execute("CREATE TABLE queue_def_7 PARTITION OF queue_def FOR VALUES IN ('7')")
    never = [
        row(db, 1, status="HOLD"),
        row(db, 1, status="DELETE"),
        row(db, 1, due=60),
        row(db, 1, status="DEFERRED", due=60),
        row(db, 1, status="SENDING", lease=60),
        row(db, 1, domain="busy.example"),
        row(db, 1, domain="busy.example", status="SENDING", lease=-5),
    ]
    due = {
        "queued": row(db, 1),
        "deferred": row(db, 1, status="DEFERRED", due=-1, attempts=3),
        "expired": row(db, 1, status="SENDING", lease=-5, attempts=1, metadata={"_partid": "7"}),
        "part": row(db, 1, metadata={"_partid": "7"}),
    }
    where = "metadata->>'_partid' = '7' OR 5 % 2 = 0"
    parts = (await Claims(link, "w", 60, where).claim(10, ["busy.example"])).items
    assert {item.id for item in parts} == {due["expired"], due["part"]}
    rest = (await Claims(link, "w", 60, None).claim(10, ["busy.example", "other.example"])).items
    assert {item.id for item in rest} == {due["queued"], due["deferred"]}
    attempts = {item.id: item.attempts for item in [*parts, *rest]}
    assert [attempts[due[name]] for name in due] == [1, 4, 2, 1]
    assert (await Claims(link, "w", 60, None).claim(10, ["busy.example"])).items == []
    busy = (await Claims(link, "w", 60, None).claim(10, [])).items
    assert {item.id for item in busy} == set(never[-2:])


async def test_only_what_has_been_due_for_a_while(db: psycopg.Connection, link: Link) -> None:
    message(db, 1)
    left = [row(db, 1, due=-60, domain=f"d{n}.example") for n in range(100)]
    fresh = [row(db, 1, domain=f"d{n}.example") for n in range(200)]
    claims = Claims(link, "w", 60, siblings=0)
    taken: list[int] = []
    while items := (await claims.claim(20, [], overdue=30)).items:  # by time, then by destination
        taken += [item.id for item in items]
    assert sorted(taken) == left
    assert len((await claims.claim(300, [])).items) == len(fresh)


async def test_a_change_of_rules_counts_at_once(db: psycopg.Connection, link: Link) -> None:
    message(db, 1)
    claims = Claims(link, "w", 60)
    assert (await claims.claim(10, [])).items == []
    held, sent = row(db, 1, domain="held.example"), row(db, 1)
    db.execute(
        "INSERT INTO rules (name, action, condition, reason, origin)"
        " VALUES ('no', 'hold', $$domain = 'held.example'$$, '', 'operator')"
    )
    assert [item.id for item in (await claims.claim(10, [])).items] == [sent]
    db.execute("DELETE FROM rules")
    assert [item.id for item in (await claims.claim(10, [])).items] == [held]


async def test_the_recipients_of_a_message_come_together(
    db: psycopg.Connection, link: Link
) -> None:
    for number in range(1, 11):
        message(db, number)
        for _ in range(5):
            row(db, number)
    others = [row(db, 1, due=60), row(db, 1, domain="busy.example"), row(db, 1, status="HOLD")]
    items = (await Claims(link, "w", 60).claim(12, ["busy.example"])).items
    taken: dict[int, int] = {}
    for item in items:
        taken[item.message_id] = taken.get(item.message_id, 0) + 1
    assert set(taken.values()) == {5}
    assert not set(others) & {item.id for item in items}
    assert len(items) == 15
    assert len((await Claims(link, "w", 60, siblings=1).claim(6, ["busy.example"])).items) == 7


async def test_large_messages_leave_room_for_the_content_of_small_ones(
    db: psycopg.Connection, link: Link
) -> None:
    for number in range(1, 6):
        row(db, message(db, number, chunks=number % 2))
    db.execute("UPDATE messages SET size = 5000 WHERE chunks > 0")
    claim = await Claims(link, "worker", 60, None).claim(10, [], inline=100, budget=8)
    bodies = {number: message.body for number, message in claim.messages.items()}
    assert bodies == {1: None, 2: b"body", 3: None, 4: b"body", 5: None}


async def test_rows_of_a_lost_claim_are_given_back(db: psycopg.Connection, link: Link) -> None:
    for number in range(1, 5):
        row(db, message(db, number), attempts=number)
    mine, other = Claims(link, "me", 60), Claims(link, "other", 60)
    known = (await mine.claim(1, [])).items
    lost = (await mine.claim(2, [])).items
    theirs = (await other.claim(1, [])).items
    assert await mine.leases.give_back([item.id for item in known]) == 2
    again = (await mine.claim(10, [])).items
    assert {(i.id, i.attempts) for i in again} == {(i.id, i.attempts) for i in lost}
    assert {i.token for i in again}.isdisjoint({i.token for i in lost})
    assert column(db, "SELECT id FROM queue WHERE lease_owner = 'other'") == [theirs[0].id]


async def test_after_a_promotion_a_lease_that_nobody_holds_has_an_unknown_outcome(
    db: psycopg.Connection, link: Link
) -> None:
    """The outcome of the row may be among the commits that the standby lacked."""
    for number in (1, 2):
        row(db, message(db, number))
    claims = Claims(link, "me", 60)
    (lost,) = (await claims.claim(1, [])).items
    (known,) = (await claims.claim(1, [])).items
    claims.leases._timeline = 1  # of the server before
    assert await claims.leases.give_back([known.id]) == 0
    assert not claims.leases.moved
    (again,) = (await claims.claim(10, [])).items
    assert (again.id, again.attempts) == (lost.id, 2)
    assert fetch(db, "SELECT row_id, event FROM attempts") == (lost.id, "unknown")


async def test_an_expired_lease_is_taken_over_and_its_attempt_logged_as_unknown(
    db: psycopg.Connection, link: Link
) -> None:
    row_id = row(db, message(db, 1), lease=-1, status="SENDING", lease_owner="dead", lease_token=99,
                 attempts=2)  # fmt: skip
    (item,) = (await Claims(link, "heir", 60, None).claim(10, [])).items
    assert (item.id, item.attempts) == (row_id, 3)
    assert item.token != 99
    logged = fetch(
        db,
        "SELECT event, row_id, message_id, attempt, lease_token, worker, code, recipient, "
        "started_at = (SELECT lease_since FROM queue) FROM attempts",
    )
    assert logged == ("unknown", row_id, 1, 2, 99, "dead", 0, "r@b.example", False)
    stale = Item(item.id, 1, "", "", "", 2, item.ts, 99)
    assert await RowLeases(link, "dead", 60).renew([stale]) == {}
    assert await RowLeases(link, "heir", 3600).renew([item, stale]) == {row_id: True}
    (until,) = fetch(db, "SELECT extract(epoch FROM lease_until - now()) FROM queue")
    assert 3500 < until <= 3600


@pytest.mark.parametrize("way", ["by time", "by domain", "urgent by domain"])
async def test_no_claim_takes_over_a_row_that_must_not_go_twice(
    db: psycopg.Connection, link: Link, way: str
) -> None:
    """Also one that was released, or is a further recipient; no other row has to wait."""
    gone = [
        {"lease": -1, "status": "SENDING"},
        {"lease": -1, "status": "QUEUED", "lease_token": 7, "lease_owner": "old"},
        {"lease": -1, "status": "DEFERRED", "lease_token": 7, "lease_owner": "old"},
    ]
    message(db, 1)
    lost = [row(db, 1, once=True, due=-9, priority=1, **each) for each in gone * 9]
    others = [row(db, 1, due=-5, priority=1, **each) for each in gone]
    fresh = [row(db, 1, once=True, priority=1) for _ in range(4)]
    claims = Claims(link, "w", 60, urgent=1, each=20 if way.startswith("urgent") else 0)
    if way != "by time":
        claims._cursor = "", 10
    items = [*(await claims.claim(5, [])).items, *(await claims.claim(30, [])).items]
    assert sorted(item.id for item in items) == [*others, *fresh]
    assert [item.id for item in items if item.once] == fresh
    assert not await take_lost(link, "w")
    assert column(db, "SELECT id FROM queue WHERE lease_owner = 'w' ORDER BY id") == [
        *others, *fresh
    ]  # fmt: skip
    # what never began may begin
    assert await claims.leases.give_back([item.id for item in items if not item.once]) == 4
    assert len((await claims.claim(9, [])).items) == 4
    assert column(db, "SELECT DISTINCT row_id FROM attempts ORDER BY 1") == others
    assert lost == column(db, "SELECT id FROM queue WHERE lease_until < now() ORDER BY id")


async def test_domains_with_nothing_due_cost_a_claim_little(
    db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    message(db, 1)
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, priority, next_attempt)"
        " SELECT 1, '', 'r', 'd' || n || '.example', 4 + n % 2, now() + interval '1 hour'"
        " FROM generate_series(1, 3000) AS n"
    )
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, priority)"
        " SELECT 1, '', 'r', 'd' || n * 10 || '.example', n % 10 FROM generate_series(1, 300) AS n"
    )
    statements = 0
    run = link.run

    async def counted(*args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
        nonlocal statements
        statements += 1
        return await run(*args, **kwargs)

    monkeypatch.setattr(link, "run", counted)
    claims = Claims(link, "w", 60)
    taken: list[int] = []
    while items := (await claims.claim(20, [])).items:
        taken += [item.id for item in items]
        assert statements <= 4, "the rules, the window, some domains, the oldest rows"
        statements = 0
    assert len(taken) == len(set(taken)) == 300
    # a busy domain hides the others in the window
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, next_attempt)"
        " SELECT 1, '', 'r', 'busy.example', now() - interval '1 hour' FROM generate_series(1, 300)"
    )
    late, statements = row(db, 1, domain="z.example"), 0
    assert [item.id for item in (await claims.claim(20, ["busy.example"])).items] == [late]
    assert statements <= 3


async def test_every_priority_of_a_domain_is_found_where_a_walk_goes_on(
    db: psycopg.Connection, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgmta.store.queue.claim.PAIRS_PER_STATEMENT", 3)
    monkeypatch.setattr("pgmta.store.queue.claim._WIDE_WINDOW_ROWS", 1)
    message(db, 1)
    ids = {row(db, 1, domain=f"{d}.example", priority=p, due=-100) for d in "abc" for p in range(9)}
    for number in range(200):
        row(db, 1, domain=f"busy{number % 7}.example", due=-1000)
    claims = Claims(link, "w", 60)
    busy = [f"busy{number}.example" for number in range(7)]
    taken: set[int] = set()
    while items := (await claims.claim(4, busy)).items:
        taken |= {item.id for item in items}
    assert taken == ids


async def test_urgent_rows_behind_a_backlog_of_their_own_and_of_others(
    db: psycopg.Connection, link: Link
) -> None:
    message(db, 1)
    for priority, domain, number in ((0, "slow", 300), (5, "bulk", 300), (1, "z", 7), (0, "y", 3)):
        db.execute(
            "INSERT INTO queue (message_id, sender, recipient, domain, priority, next_attempt)"
            " SELECT 1, '', 'r', %s, %s, now() - interval '1 hour' * (%s = 'slow')::int"
            " FROM generate_series(1, %s)",
            (f"{domain}.example", priority, domain, number),
        )
    row(db, 1, domain="y.example", priority=1, due=60)
    claims = Claims(link, "w", 60, urgent=1, each=5)
    taken: dict[str, list[int]] = {}
    busy: list[str] = []
    while items := (await claims.claim(20, busy)).items:
        new: dict[str, int] = {}
        for item in items:
            assert item.urgent
            new[item.domain] = new.get(item.domain, 0) + 1
        for domain, count in new.items():
            taken.setdefault(domain, []).append(count)
        busy = ["slow.example"]
    assert taken.pop("slow.example") == [5]
    assert {domain: sum(counts) for domain, counts in taken.items()} == {
        "z.example": 7,
        "y.example": 3,
    }
    assert max(count for counts in taken.values() for count in counts) == 5
    below = Claims(link, "v", 60, priority=0, urgent=1, each=5)
    assert {item.domain for item in (await below.claim(50, [])).items} == {"slow.example"}
    ordinary = (await Claims(link, "o", 60, urgent=1).claim(300, [])).items
    assert {item.domain: item.urgent for item in ordinary} == {
        "slow.example": True,
        "bulk.example": False,
    }


async def test_the_next_row_that_becomes_due(link: Link, db: psycopg.Connection) -> None:
    """It is one that the worker may claim, and none that the last claim has seen."""
    message(db, 1)
    db.execute(
        "INSERT INTO queue (message_id, sender, recipient, domain, priority, next_attempt)"
        " SELECT 1, '', 'r@b.example', domain, priority, now() + make_interval(secs => seconds)"
        " FROM (VALUES ('a', 5, 40), ('a', 3, 30), ('b', 9, 20), ('c', 0, 10), ('a', 5, -100))"
        " AS v (domain, priority, seconds)"
    )

    async def due(where: str | None, priority: int, since: float, window: float) -> float | None:
        claims = Claims(link, "w", 60, where, priority)
        assert await claims.next_due(since, window) is None  # before the first claim
        await claims.claim(0, [])
        seconds = await claims.next_due(since, window)
        return None if seconds is None else round(seconds, -1)

    assert await due(None, 9, 0, 3600) == 10
    assert await due("domain <> 'c'", 9, 0, 3600) == 20
    assert await due("domain = 'a'", 9, 0, 3600) == 30
    assert await due("domain = 'a'", 9, 0, 20) is None
    assert await due("domain <> 'c'", 5, 0, 3600) == 30
    assert await due(None, 9, 120, 3600) == -100
