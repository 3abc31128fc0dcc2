"""Campaigns, recipients, templates, tokens and collections whose time is over go in batches."""

from __future__ import annotations

from functools import partial

from pgmta.logs import get
from pgmta.store.admin.expiry import Expiry
from queued.config.queued_config import Retention
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty

_EVERY = 3600.0  # seconds

log = get("upkeep")


async def expire_all(expiry: Expiry, kept: Retention) -> None:
    """Remove all whose time is over, some rows a commit.

    Raises StoreUnavailable, psycopg.Error.
    """
    removed = {
        "recipients": await expiry.recipients(kept.recipients),
        "campaigns": await expiry.campaigns(kept.campaigns),
        "templates": await expiry.templates(kept.templates),
        "tokens and collections": await expiry.tokens(kept.tokens, kept.collections),
    }
    for what, rows in removed.items():
        if rows:
            log.info(f"removed {what} whose time is over", rows=rows)


async def _expire(process: QueuedProcess) -> None:
    await expire_all(Expiry(process.link), process.config.retention)


DUTY = Duty("expiry", _EVERY, lambda process: partial(_expire, process))
