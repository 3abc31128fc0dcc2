"""Templates whose time is over go in batches."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.admin.expiry import Expiry
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty

EXPIRY_INTERVAL_S = 3600.0
TEMPLATE_AGE_S = 365 * 86400.0  # of a replaced version that no mail and no campaign has

log = get("upkeep")


def log_removed(what: str, rows: int) -> None:
    """Log how many rows were removed, unless there was none."""
    if rows:
        log.info(f"removed {what} whose time is over", rows=rows)


async def _expire(process: QueuedProcess) -> None:
    log_removed("templates", await Expiry(process.link).templates(TEMPLATE_AGE_S))


DUTY = Duty("expiry", EXPIRY_INTERVAL_S, lambda process: partial(_expire, process))
