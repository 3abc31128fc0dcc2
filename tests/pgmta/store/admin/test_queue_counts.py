"""The count of the queue: by next hop, bounded, by one process at a time, and without locks."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgmta.config.types import HostPort
from pgmta.postgres.link import Link
from pgmta.store.admin import queue_counts
from pgmta.store.admin.queue_counts import SETTINGS, GroupCount, QueueCounts
from queued.config import Shaping
from queued.routing.routes import Routes
from tests.support.rows import fetch, message

FILL = """
INSERT INTO queue (message_id, sender, recipient, domain, tenant, status, next_attempt, ts)
SELECT 1, '', 'r@' || d, d, t, s, now() + n, now() - interval '1 h'
FROM (VALUES {}) AS v (d, t, s, n, number), generate_series(1, number)
"""
ROUTES: dict[str, Any] = {
    "routes": [
        {"domain": "*.partner.example", "to": ["relay.example:26"]},
        {"domain": "b.example", "tenant": "big", "to": ["big.example"]},
        {"domain": "c.example", "to": "mx"},
    ]
}


def fill(db: psycopg.Connection, *rows: tuple[str, str, str, str, int]) -> None:
    """Add rows of a domain, tenant, status and time, and how many."""
    values = ", ".join(f"('{d}', '{t}', '{s}', interval '{n}', {k})" for d, t, s, n, k in rows)
    db.execute(FILL.format(values).encode())


async def counted(link: Link, routes: Routes) -> dict[tuple[str | None, str], GroupCount]:
    counts = QueueCounts(link)
    assert await counts.count(routes.next_hops, by_mail=routes.by_mail)
    found = await counts.read_counts()
    assert found
    assert found.age < 10
    return {(each.next_hop, each.status): each for each in found.groups}


async def test_rows_count_by_the_next_hop_of_their_route(
    database: str, db: psycopg.Connection
) -> None:
    message(db, 1)
    fill(
        db,
        ("x.partner.example", "", "QUEUED", "-5 min", 2),
        ("y.partner.example", "", "QUEUED", "-9 min", 1),
        ("y.partner.example", "", "DEFERRED", "5 min", 4),
        ("b.example", "big", "QUEUED", "1 min", 1),
        ("b.example", "small", "QUEUED", "1 min", 3),
        ("c.example", "", "HOLD", "-1 h", 2),
        ("d.example", "", "QUEUED", "-1 min", 5),
        ("short.example", "", "QUEUED", "0", 1),
        ("b.short.example", "", "QUEUED", "0", 1),
    )
    short = {"*.short.example": HostPort("h", 26), "short.example": HostPort("g", 25)}
    routes = Routes({"*": "mx", **short}, Shaping.model_validate(ROUTES))
    link = Link(database, "test", {**SETTINGS, "role": "pgmta_queued"})
    groups = await counted(link, routes)
    assert {key: each.rows for key, each in groups.items()} == {
        ("relay.example:26", "QUEUED"): 3,
        ("relay.example:26", "DEFERRED"): 4,
        ("big.example:25", "QUEUED"): 1,
        ("b.example", "QUEUED"): 3,
        ("c.example", "HOLD"): 2,
        ("d.example", "QUEUED"): 5,
        ("g:25", "QUEUED"): 1,
        ("h:26", "QUEUED"): 1,
    }
    relay = groups["relay.example:26", "QUEUED"]
    assert relay.due == 3
    assert relay.oldest == pytest.approx(3600, abs=30)
    assert relay.oldest_due == pytest.approx(540, abs=30)
    assert groups["c.example", "HOLD"].due == 0
    found = await QueueCounts(link).read_counts()
    assert found
    assert found.oldest_due == pytest.approx(540, abs=30)
    assert {"session", "standby"}.isdisjoint(found.holders)  # it sees none
    await link.close()


async def test_many_groups_have_a_rest_and_large_partitions_a_sample(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_counts, "_MAX_GROUPS", 10)
    message(db, 1)
    fill(db, *((f"d{n}.example", "", "QUEUED", "-1 min", 1 + n) for n in range(30)))
    link = Link(database, "test", SETTINGS)
    groups = await counted(link, Routes({"*": "mx"}))
    assert len(groups) == 11
    assert groups["d29.example", "QUEUED"].rows == 30
    assert sum(each.rows for each in groups.values()) == 30 * 31 // 2
    assert groups[None, "QUEUED"].due == 20 * 21 // 2
    # the same again as estimates
    for name, value in (
        ("_MAX_WHOLE_OCTETS", 8192),
        ("_SAMPLE_OCTETS", 1 << 20),
        ("_MAX_AGE_S", 0.0),
    ):
        monkeypatch.setattr(queue_counts, name, value)
    fill(db, ("many.example", "", "QUEUED", "-1 min", 20_000), ("h", "", "HOLD", "0", 50))
    groups = await counted(link, Routes({"*": "mx"}))
    assert groups["many.example", "QUEUED"].rows == pytest.approx(20_000, rel=0.3)
    assert groups["h", "HOLD"].rows == 50  # a small partition is read whole
    (share,) = fetch(db, "SELECT share FROM queue_counted")
    assert 0.05 < share < 0.8
    await link.close()


async def test_one_process_counts_and_waits_for_no_lock_of_rows(
    database: str, db: psycopg.Connection
) -> None:
    message(db, 1)
    fill(db, ("d.example", "", "QUEUED", "-1 min", 5))
    db.commit()
    links = [Link(database, "test", SETTINGS) for _ in range(4)]
    with psycopg.connect(database) as other:
        other.execute("UPDATE queue SET priority = 4")  # its rows are locked
        done = await asyncio.gather(*(QueueCounts(each).count([], by_mail=False) for each in links))
        assert sorted(done) == [False, False, False, True]
    assert fetch(db, "SELECT sum(rows)::int FROM queue_counts") == (5,)
    for each in links:
        await each.close()
