"""Transcripts: day partitions are made ahead, old ones are dropped; so are traces that ended."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.records.transcripts import keep_partitions
from queued.upkeep.duty import Duty
from queued.upkeep.queued_process import QueuedProcess

log = get("upkeep")


async def _keep_transcripts(process: QueuedProcess) -> None:
    """Make missing partitions, drop old ones, remove old traces."""
    made, dropped = await keep_partitions(process.link, process.config.retention.transcripts)
    if made or dropped:
        log.info("transcripts partitions", made=made, dropped=dropped)
    await process.traces.remove()


DUTY = Duty("transcripts", 3600.0, lambda process: partial(_keep_transcripts, process))
