"""The log of attempts: day partitions are made ahead, old ones are dropped."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.records.attempts import ensure_partitions

EVERY = 3600.0  # seconds

log = get("upkeep")


async def keep_log(link: Link, upkeep: Upkeep, retention: float) -> None:
    """Make missing partitions, drop those older than `retention` seconds."""
    made = await ensure_partitions(link)
    dropped = await upkeep.expire_attempts(retention)
    if made or dropped:
        log.info("attempts partitions", made=made, dropped=dropped)
