"""The duties of a process ask here before they work: one look answers for all of them."""

from __future__ import annotations

import asyncio
import time

from pgmta.store.admin.upkeep import Look, Upkeep

_MAX_ANSWER_AGE_S = 0.9


class TaskLook:
    """Knows which duties may have something to do."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._found: frozenset[Look] = frozenset()
        self._asked = -_MAX_ANSWER_AGE_S
        self._lock = asyncio.Lock()

    async def may(self, look: Look) -> bool:
        """Return whether there may be work, by the condition of a look.

        The answer is up to 0.9 s old. Raises StoreUnavailable, psycopg.Error.
        """
        async with self._lock:
            now = time.monotonic()
            if now > self._asked + _MAX_ANSWER_AGE_S:
                self._found = await self._upkeep.look()
                self._asked = now
            return look in self._found
