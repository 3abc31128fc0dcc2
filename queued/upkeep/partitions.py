"""Makes the day partitions of the attempts log ahead of time."""

from __future__ import annotations

import asyncio

import psycopg

from queued.db import Link
from queued.errors import StoreUnavailable
from queued.logs import get
from queued.store.attempts import ensure_partitions

_EVERY = 3600.0  # seconds
_AGAIN = 10.0  # seconds, after a failure

log = get("upkeep")


async def keep_partitions(link: Link) -> None:
    """Look every hour; runs until cancelled."""
    while True:
        try:
            made = await ensure_partitions(link)
            if made:
                log.info("made attempts partitions", days=made)
            await asyncio.sleep(_EVERY)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("can't make attempts partitions", reason=str(error))
            await asyncio.sleep(_AGAIN)
