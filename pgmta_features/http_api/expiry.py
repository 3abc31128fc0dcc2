"""What the API keeps for a time goes: keys of requests, uploads, and subscriptions of old keys."""

from __future__ import annotations

from functools import partial

from pgmta.postgres.link import Link
from pgmta.store.admin.expiry import remove_batches
from pgmta.store.queries import feature_queries
from queued.upkeep.duty import Duty
from queued.upkeep.expiry import log_removed

_KEY_AGE_S = 86400.0  # a repetition within a day gets the first answer
_UPLOAD_AGE_S = 3600.0  # no upload takes so long
_INTERVAL_S = 600.0

_SQL = feature_queries("http_api")


async def expire_requests(link: Link, key_age_s: float, upload_age_s: float) -> None:
    """Remove what is older. Raises StoreUnavailable, psycopg.Error."""
    removed = await remove_batches(link, _SQL["expire_requests"], age=key_age_s)
    log_removed("Idempotency-Keys", removed)
    log_removed("uploads", await remove_batches(link, _SQL["expire_uploads"], age=upload_age_s))
    ((ended,),) = await link.run(_SQL["end_subscriptions"], {})
    log_removed("subscriptions", ended)


DUTY = Duty(
    "api requests",
    _INTERVAL_S,
    lambda process: partial(expire_requests, process.link, _KEY_AGE_S, _UPLOAD_AGE_S),
)
