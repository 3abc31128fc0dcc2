"""The days of the logs: partitions are made ahead, and old ones are dropped."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.store.records.days import keep_days
from pgmta.store.records.reports import Reports
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty
from queued.upkeep.reports import report_link

RETENTION_INTERVAL_S = 3600.0
"""Between looks at the days of a log."""

log = get("upkeep")


async def keep_log(link: Link, table: str, age: float) -> None:
    """Make the next days of a log, and drop those that ended more than `age` seconds ago."""
    made, dropped = await keep_days(link, table, age)
    if made or dropped:
        log.info(f"{table} partitions", made=made, dropped=dropped)


async def _keep_attempts(process: QueuedProcess) -> None:
    await keep_log(process.link, "attempts", process.config.retention.attempts)


async def _keep_transcripts(process: QueuedProcess) -> None:
    """Also remove old traces."""
    await keep_log(process.link, "transcripts", process.config.retention.transcripts)
    await process.traces.remove_traces()


async def _keep_reports(process: QueuedProcess) -> None:
    """Also remove old delays, and counts of DSNs."""
    link = report_link(process)
    await keep_log(link, "reports", process.config.retention.attempts)
    await Reports(link, process.name).tidy()


DUTIES = [
    Duty("attempts", RETENTION_INTERVAL_S, lambda process: partial(_keep_attempts, process)),
    Duty("transcripts", RETENTION_INTERVAL_S, lambda process: partial(_keep_transcripts, process)),
    Duty("reports", RETENTION_INTERVAL_S, lambda process: partial(_keep_reports, process)),
]
