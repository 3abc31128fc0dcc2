"""Vacuums delivered content soon, so that new content takes its place in memory."""

from __future__ import annotations

import asyncio
import time

import psycopg

from queued.errors import StoreUnavailable
from queued.logs import get
from queued.store.space import Space

_STEP = 32 << 20  # octets of delivered content that make it worth while
_QUIET = 60.0  # seconds without so much, after which the file is made shorter
_LONG = 2.0  # seconds; one that takes longer has met rows that it may not remove, for a backup say
_REST = 20  # times as long as a long one took

log = get("upkeep")


class Reclaimer:
    """Counts what is delivered, vacuums when it is enough, and shortens the file afterwards."""

    def __init__(self, space: Space, step: int = _STEP, quiet: float = _QUIET) -> None:
        self._space = space
        self._step = step
        self._quiet = quiet
        self._octets = 0
        self._enough = asyncio.Event()

    def freed(self, octets: int) -> None:
        """Content of a delivered message is about to go."""
        self._octets += octets
        if self._octets >= self._step:
            self._enough.set()

    async def run(self) -> None:
        """Work until cancelled, or until it turns out that our role may not vacuum."""
        long = False  # whether the file may be longer than it needs to be
        while True:
            try:
                async with asyncio.timeout(self._quiet if long else None):
                    await self._enough.wait()
                long = True
            except TimeoutError:
                long = False
            self._enough.clear()
            self._octets = 0
            began = time.monotonic()
            try:
                if not await self._space.allowed():
                    return
                await self._space.reclaim(shorten=not long)
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("upkeep failed", duty="space", reason=str(error).splitlines()[0])
            took = time.monotonic() - began
            await asyncio.sleep(took if took < _LONG else took * _REST)
