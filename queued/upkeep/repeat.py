"""Repeats a duty for as long as the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg

from queued.errors import StoreUnavailable
from queued.logs import get

log = get("upkeep")

_AGAIN = 10.0  # seconds after a failure, at most


async def repeat(duty: str, every: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do it every `every` seconds until cancelled; a failure is logged, and tried again soon."""
    while True:
        try:
            await work()
            pause = every
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("upkeep failed", duty=duty, reason=str(error).splitlines()[0])
            pause = min(every, _AGAIN)
        await asyncio.sleep(pause)
