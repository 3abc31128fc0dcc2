"""The table of workers."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from pgmta.postgres.link import Link
from pgmta.store.admin.workers import Registry, WorkerEntry


async def test_places_among_those_that_claim_the_same_and_live(
    database: str, db: psycopg.Connection
) -> None:
    link = Link(database, "test")
    first, second, third = (Registry(link, owner) for owner in ("h:1", "h:2", "h:3"))

    def entry(name: str, condition: str | None = None, **other: Any) -> WorkerEntry:
        return WorkerEntry(
            name=name, condition=condition, reach="true", **{"action": "deliver", **other}
        )

    async def places(registry: Registry) -> dict[str, tuple[int, int]]:
        found = await registry.places()
        assert all(abs(place.clock - time.time()) < 60 for place in found.values())
        return {name: (place.before, place.number) for name, place in found.items()}

    few = "priority < 3"
    await first.register([entry("all"), entry("few", few), entry("hold", action="hold")], [])
    await second.register([entry("every"), entry("more"), entry("few", few)], [])
    await third.register([entry("all"), entry("urgent", priority=3)], [])
    assert await places(first) == {"all": (0, 4), "few": (0, 2)}
    assert await places(second) == {"every": (1, 4), "more": (2, 4), "few": (1, 2)}
    assert await places(third) == {"all": (3, 4), "urgent": (0, 1)}
    db.execute("UPDATE workers SET seen_at = now() - interval '1 minute' WHERE owner <> 'h:1'")
    assert await places(first) == {"all": (0, 1), "few": (0, 1)}
    assert await places(third) == {"all": (1, 2), "urgent": (0, 1)}
    await first.leave()
    assert await places(first) == {}
    await link.close()
