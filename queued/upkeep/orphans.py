"""Bodies that no row refers to, and chunks of messages that never were."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.store.upkeep import Upkeep

EVERY = 3600.0  # seconds
_BATCH = 500

log = get("upkeep")


async def remove_orphans(upkeep: Upkeep, age: float) -> None:
    """Remove those older than `age` seconds."""
    removed = 0
    while rows := await upkeep.orphans(age, _BATCH):
        removed += rows
    if removed:
        log.info("removed orphaned bodies", rows=removed)
