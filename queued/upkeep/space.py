"""Vacuums delivered content soon, so that new content takes its place in memory."""

from __future__ import annotations

import asyncio
import time

import psycopg

from queued.errors import StoreUnavailable
from queued.logs import get
from queued.store.space import Space

_STEP = 32 << 20  # octets of delivered content that make it worth while
_LONG = 2.0  # seconds; one that takes longer has met rows that it may not remove, for a backup say
_REST = 20  # times as long as a long one took

log = get("upkeep")


class Reclaimer:
    """Counts what is delivered, and vacuums when it is enough."""

    def __init__(self, space: Space, step: int = _STEP) -> None:
        self._space = space
        self._step = step
        self._octets = 0
        self._enough = asyncio.Event()

    def freed(self, octets: int) -> None:
        """Content of a delivered message is about to go."""
        self._octets += octets
        if self._octets >= self._step:
            self._enough.set()

    async def run(self) -> None:
        """Work until cancelled, or until it turns out that our role may not vacuum."""
        while True:
            await self._enough.wait()
            self._enough.clear()
            self._octets = 0
            began = time.monotonic()
            try:
                if not await self._space.allowed():
                    return
                await self._space.reclaim()
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("upkeep failed", duty="space", reason=str(error).splitlines()[0])
            took = time.monotonic() - began
            await asyncio.sleep(took if took < _LONG else took * _REST)
