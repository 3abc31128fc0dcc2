"""Message ids, reserved from the database's sequence in blocks."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.store.queue.enqueue import BLOCK, Enqueue

LOW = BLOCK // 2
"""Ids left when the next block is to be fetched."""


class Ids:
    """Message ids that belong to this process alone."""

    def __init__(self, store: Enqueue) -> None:
        self._store = store
        self.available: deque[int] = deque()
        """Ids that may be taken at once."""
        self._lock = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    def refill(self) -> None:
        """Fetch the next block in the background."""
        if not self._ahead:
            self._ahead = asyncio.create_task(self._fill_ahead())

    async def take_id(self) -> int:
        """Return an id. Raises StoreUnavailable, psycopg.Error."""
        while not self.available:
            await self.fill(1)
        return self.available.popleft()

    async def fill(self, least: float = math.inf) -> None:
        """Fetch a block if there are fewer than `least`. Raises StoreUnavailable, psycopg.Error."""
        async with self._lock:
            if len(self.available) < least:
                self.available.extend(await self._store.block())

    async def _fill_ahead(self) -> None:
        try:
            await self.fill(LOW)
        except (StoreUnavailable, psycopg.Error):
            pass  # `take_id` raises it for the session that needs the next block
        finally:
            self._ahead = None
