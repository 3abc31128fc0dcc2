"""The table of workers."""

from __future__ import annotations

import psycopg

from queued.db import Link
from queued.store.workers import Entry, Registry


async def test_peers_deliver_by_the_same_condition_and_live(
    database: str, db: psycopg.Connection
) -> None:
    link = Link(database, "test")
    first, second, third = (Registry(link, owner) for owner in ("h:1", "h:2", "h:3"))

    def entry(name: str, condition: str | None = None, action: str = "deliver") -> Entry:
        return Entry(name, action, condition, "true")

    priority = "priority < 3"
    await first.register([entry("all"), entry("urgent", priority), entry("hold", None, "hold")], [])
    await second.register([entry("every"), entry("more"), entry("urgent", priority)], [])
    await third.register([entry("all"), entry("other", "priority > 7")], [])
    assert await first.peers() == {"all": 4, "urgent": 2}
    assert await second.peers() == {"every": 4, "more": 4, "urgent": 2}
    db.execute("UPDATE workers SET seen_at = now() - interval '1 minute' WHERE owner <> 'h:1'")
    assert await first.peers() == {"all": 1, "urgent": 1}
    assert await third.peers() == {"all": 2, "other": 1}
    await first.leave()
    assert await first.peers() == {}
    await link.close()
