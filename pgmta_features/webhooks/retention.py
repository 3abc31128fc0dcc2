"""Events that were set aside are forgotten when they have expired."""

from __future__ import annotations

from functools import partial

from pgmta.store.queries import feature_queries
from pgmta_features.events.config import EventRetention
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty
from queued.upkeep.log_retention import RETENTION_INTERVAL_S

_MAX_ROWS = 1000  # of a statement: other upkeep uses the connection, too

_SQL = feature_queries("webhooks")


async def _remove(process: QueuedProcess) -> None:
    fields = {"age": process.config.section(EventRetention).events, "most": _MAX_ROWS}
    while await process.link.run(_SQL["expired"], fields) == [(_MAX_ROWS,)]:
        pass


DUTY = Duty("set-aside events", RETENTION_INTERVAL_S, lambda process: partial(_remove, process))
