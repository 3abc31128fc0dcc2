"""Bodies that no row refers to, and pieces of messages that never were."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.store.sweep import Sweeps

EVERY = 3600.0  # seconds
_BATCH = 500

log = get("upkeep")


async def remove_orphans(sweeps: Sweeps, age: float) -> None:
    """Remove those older than `age` seconds."""
    removed = 0
    while rows := await sweeps.orphans(age, _BATCH):
        removed += rows
    if removed:
        log.info("removed orphaned bodies", rows=removed)
