"""Bodies without a row, and chunks of messages that were never committed."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.store.admin.upkeep import Upkeep

EVERY = 3600.0  # seconds
_BATCH = 500

log = get("upkeep")


async def remove_orphans(upkeep: Upkeep, age: float) -> None:
    """Remove orphans older than `age` seconds. Raises StoreUnavailable, psycopg.Error."""
    removed = 0
    while rows := await upkeep.orphans(age, _BATCH):
        removed += rows
    if removed:
        log.info("removed orphaned bodies", rows=removed)
