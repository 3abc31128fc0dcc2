"""How many questions are under way at a time: to name servers, or for MTA-STS policies."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_MAX_QUERIES = 500  # under way: each has a socket
_MIN_QUERY_S = 2.0  # that a question has in any case


class QuerySlots:
    """Admits questions; if others wait, the oldest ones have two seconds and no more."""

    def __init__(self, most: int = _MAX_QUERIES, patience: float = _MIN_QUERY_S) -> None:
        self._free = asyncio.Semaphore(most)
        self._patience = patience
        self._waiting = 0
        # questions that wait, and when each began
        self._patient: OrderedDict[asyncio.Timeout, float] = OrderedDict()

    @asynccontextmanager
    async def slot(self, timeout: float) -> AsyncIterator[None]:
        """Wait for a slot, and have it for `timeout` seconds. Raises TimeoutError after these."""
        loop = asyncio.get_running_loop()
        if self._free.locked():
            if self._patient:
                oldest, began = self._patient.popitem(last=False)
                oldest.reschedule(max(loop.time(), began + self._patience))
            self._waiting += 1
            try:
                await self._free.acquire()
            finally:
                self._waiting -= 1
        else:
            await self._free.acquire()
        try:
            crowded = self._waiting > 0
            async with asyncio.timeout(min(timeout, self._patience) if crowded else timeout) as end:
                if not crowded and timeout > self._patience:
                    self._patient[end] = loop.time()
                try:
                    yield
                finally:
                    self._patient.pop(end, None)
        finally:
            self._free.release()
