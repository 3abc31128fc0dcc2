"""Message ids, reserved from the database's sequence some at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.store.queue.enqueue import Enqueue

_FLOWING_IDS = 100
_LONE_IDS = 10
"""Ids that are fetched at once: a process without much mail leaves no large gaps."""

_FLOWING_S = 10.0
"""Mail flows if ids were last fetched at most that long ago."""


class Ids:
    """Message ids that belong to this process alone."""

    def __init__(self, store: Enqueue) -> None:
        self._store = store
        self.available: deque[int] = deque()
        """Ids that may be taken at once."""
        self.low = _LONE_IDS // 2
        """More are to be fetched when fewer are left."""
        self._fetched_at = -math.inf
        self._lock = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    def refill(self) -> None:
        """Fetch more ids in the background."""
        if not self._ahead:
            self._ahead = asyncio.create_task(self._fill_ahead())

    async def take_id(self) -> int:
        """Return an id. Raises StoreUnavailable, psycopg.Error."""
        while not self.available:
            await self.fill(1)
        return self.available.popleft()

    async def fill(self, least: float = math.inf) -> None:
        """Fetch more if there are fewer than `least`. Raises StoreUnavailable, psycopg.Error."""
        async with self._lock:
            if len(self.available) >= least:
                return
            flowing = time.monotonic() < self._fetched_at + _FLOWING_S
            number = _FLOWING_IDS if flowing else _LONE_IDS
            self.available.extend(await self._store.reserve(number))
            self.low, self._fetched_at = number // 2, time.monotonic()

    async def _fill_ahead(self) -> None:
        try:
            await self.fill(self.low)
        except (StoreUnavailable, psycopg.Error):
            pass  # `take_id` raises it for the session that needs the next id
        finally:
            self._ahead = None
