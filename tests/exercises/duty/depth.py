"""The number of rows, in the log each minute."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty

log = get("upkeep")


async def _count(process: QueuedProcess) -> None:
    ((rows,),) = await process.link.run("SELECT count(*) FROM queue")
    log.info("depth", rows=rows)


DUTY = Duty("depth", 60.0, lambda process: partial(_count, process))
