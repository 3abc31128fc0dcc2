"""The duties of a process ask here before they work: one look answers for all of them."""

from __future__ import annotations

import asyncio
import math
import time

from pgmta.service import rest_after
from pgmta.store.admin.upkeep import Look, Upkeep

_MAX_ANSWER_AGE_S = 0.9
_MAX_DEAR_ANSWER_AGE_S = 2.0  # scheduled mail is in time even so: schedule_ahead()


class TaskLook:
    """Knows which duties may have something to do."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._found: frozenset[Look] = frozenset()
        self._until = -math.inf  # time until which the answer counts
        self._lock = asyncio.Lock()

    async def may(self, look: Look) -> bool:
        """Return whether there may be work, by the condition of a look.

        The answer is up to 0.9 s old, or 2 s if a look takes long. Raises StoreUnavailable,
        psycopg.Error.
        """
        asked = time.monotonic()
        async with self._lock:
            if asked > self._until:  # otherwise the answer came, or counted, since we asked
                began = time.monotonic()
                self._found = await self._upkeep.look()
                rest = rest_after(time.monotonic() - began, _MAX_DEAR_ANSWER_AGE_S)
                self._until = began + max(_MAX_ANSWER_AGE_S, rest)
            return look in self._found
