"""The days of events: partitions are made ahead, and old ones are dropped."""

from __future__ import annotations

from functools import partial

from pgmta.store.queries import feature_queries
from pgmta_features.events.config import EventRetention
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty
from queued.upkeep.log_retention import RETENTION_INTERVAL_S, keep_log

_SQL = feature_queries("events")


async def _keep(process: QueuedProcess) -> None:
    kept = process.config.section(EventRetention).events
    await process.link.run(_SQL["keep"], {})
    for log in ("mail_events", "event_log"):
        await keep_log(process.link, log, kept)


DUTY = Duty("event days", RETENTION_INTERVAL_S, lambda process: partial(_keep, process))
