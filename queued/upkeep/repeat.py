"""Repeats a duty for as long as the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults

log = get("upkeep")

_AGAIN = 10.0  # seconds after a failure, at most


async def repeat(
    duty: str, every: Callable[[], float], work: Callable[[], Awaitable[None]]
) -> None:
    """Do it every `every()` seconds until cancelled; failures are logged once, tried again soon."""
    failed = False
    while True:
        try:
            await work()
            pause, failed = every(), False
        except (StoreUnavailable, psycopg.Error) as error:
            if not failed:
                log.warning("upkeep failed", duty=duty, reason=faults.words(error))
            pause, failed = min(every(), _AGAIN), True
        await asyncio.sleep(pause)
