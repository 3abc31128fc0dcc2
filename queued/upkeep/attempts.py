"""The log of attempts: day partitions are made ahead, old ones are dropped."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.records.attempts import ensure_partitions
from queued.upkeep.duty import Duty
from queued.upkeep.queued_process import QueuedProcess

log = get("upkeep")


async def _keep_log(process: QueuedProcess) -> None:
    """Make missing partitions, drop old ones."""
    made = await ensure_partitions(process.link)
    dropped = await process.upkeep.expire_attempts(process.config.retention.attempts)
    if made or dropped:
        log.info("attempts partitions", made=made, dropped=dropped)


DUTY = Duty("attempts", 3600.0, lambda process: partial(_keep_log, process))
