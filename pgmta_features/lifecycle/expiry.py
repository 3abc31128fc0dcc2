"""Tokens and collections go when their time is over."""

from __future__ import annotations

from functools import partial

from pgmta.store.admin.expiry import remove_batches
from pgmta.store.queries import feature_queries
from pgmta_features.lifecycle.config import LifecycleRetention
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty
from queued.upkeep.expiry import EXPIRY_INTERVAL_S, log_removed

COLLECTION_AGE_S = 90 * 86400.0  # of a batch of a collector
_SQL = feature_queries("lifecycle")


async def _expire(process: QueuedProcess) -> None:
    kept = process.config.section(LifecycleRetention)
    removed = await remove_batches(
        process.link, _SQL["expire"], age=kept.tokens, collections=COLLECTION_AGE_S
    )
    log_removed("tokens and collections", removed)


DUTY = Duty("token expiry", EXPIRY_INTERVAL_S, lambda process: partial(_expire, process))
