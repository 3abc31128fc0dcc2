"""The duties of a process ask here before they work: one look answers for all of them."""

from __future__ import annotations

import asyncio
import math
import time

from pgmta.store.admin.upkeep import Look, Upkeep

_MAX_ANSWER_AGE_S = 0.9
# A look is dear while dead rows stand before the live ones (a backup keeps them). It is asked
# less often then, and still so often that scheduled mail is in time: schedule_ahead().
_COST_FACTOR = 20
_MAX_DEAR_ANSWER_AGE_S = 2.0


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
        async with self._lock:
            began = time.monotonic()
            if began > self._until:
                self._found = await self._upkeep.look()
                rest = (time.monotonic() - began) * _COST_FACTOR
                self._until = began + max(_MAX_ANSWER_AGE_S, min(rest, _MAX_DEAR_ANSWER_AGE_S))
            return look in self._found
