"""Bodies without a row, and chunks of messages that were never committed."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.admin.upkeep import ORPHAN_AGE_S
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty

_CHUNKS_PER_COMMIT = 500

log = get("upkeep")


async def _remove_orphans(process: QueuedProcess) -> None:
    """Remove old orphans."""
    removed = 0
    while rows := await process.upkeep.orphans(ORPHAN_AGE_S, _CHUNKS_PER_COMMIT):
        removed += rows
    if removed:
        log.info("removed orphaned bodies", rows=removed)


DUTY = Duty("orphans", 3600.0, lambda process: partial(_remove_orphans, process))
