"""The duties of a process ask here before they work: one look answers for all of them."""

from __future__ import annotations

import asyncio
import time

from pgmta.store.admin.upkeep import NO_TASKS, Upkeep

_FRESH = 0.9  # seconds for which an answer counts


class TaskLook:
    """Knows which duties may have something to do."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._found = NO_TASKS
        self._asked = -_FRESH
        self._lock = asyncio.Lock()

    async def may(self, task: str) -> bool:
        """Return whether a duty may have work; `task` is a field of Tasks.

        The answer is up to 0.9 s old. Raises StoreUnavailable, psycopg.Error.
        """
        async with self._lock:
            now = time.monotonic()
            if now > self._asked + _FRESH:
                self._found = await self._upkeep.tasks()
                self._asked = now
            return bool(getattr(self._found, task))
