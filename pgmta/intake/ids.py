"""Message ids, reserved from the database's sequence some at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.store.queue.enqueue import Enqueue

_MIN_IDS, _MAX_IDS = 50, 1000  # of one fetch
"""Ids that are fetched at once: a process without much mail leaves no large gaps."""

_USED_UP_SOON_S = 10.0
"""Ids that are used up within this time were too few: the next fetch takes twice as many."""

_MAX_FETCH_S = 30.0
"""A fetch ahead that takes longer is given up, with its connection: its session hangs."""


class Ids:
    """Message ids that belong to this process alone."""

    def __init__(self, store: Enqueue) -> None:
        self._store = store
        self._available: deque[int] = deque()
        self._timeline: int | None = None  # of the server that gave these
        self.low = _MIN_IDS // 2
        """More are to be fetched when fewer are left."""
        self.asked_at = math.inf
        """When the reservation under way began, by the monotonic clock; inf without one."""
        self._number = _MIN_IDS
        self._fetched_at = -math.inf
        self._lock = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    @property
    def available(self) -> deque[int]:
        """The ids that may be taken at once. Those of a former timeline are thrown away."""
        if self._available and self._timeline != self._store.link.latest_timeline:
            self._available.clear()
        return self._available

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
            soon = time.monotonic() < self._fetched_at + _USED_UP_SOON_S
            self._number = min(2 * self._number, _MAX_IDS) if soon else _MIN_IDS
            # a probe of a database that takes no mail asks again and again
            number = self._number if len(self.available) < _MAX_IDS else 1
            self.asked_at = time.monotonic()
            try:
                found = await self._store.reserve(number)
                self.available.extend(found)
                self._timeline = self._store.link.timeline
            finally:
                self.asked_at = math.inf
            self.low, self._fetched_at = self._number // 2, time.monotonic()

    async def _fill_ahead(self) -> None:
        try:
            async with asyncio.timeout(_MAX_FETCH_S):
                await self.fill(self.low)
        except (StoreUnavailable, TimeoutError, psycopg.Error):
            pass  # `take_id` raises the error for the session that needs the next id
        finally:
            self._ahead = None
