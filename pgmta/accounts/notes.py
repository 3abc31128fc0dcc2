"""Failures and logins on their way into the database: some per second, whatever comes."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from contextvars import copy_context

import psycopg
from structlog.contextvars import unbind_contextvars

from pgmta.accounts.throttle import Throttle
from pgmta.config.types import Network
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.store.accounts.logins import LoginStore

_INTERVAL = 1.0  # seconds between two writes
_UNITS = 64  # of failures in a write
_DUE = 10_000  # units that wait for one, at most
_SEEN = 64  # logins in a write
_FORGET = 3600  # writes until old failures are removed
_TIME = 5.0  # seconds for a write
_LOG_INTERVAL = 60.0  # seconds between two lines about writes that fail

log = get("auth")


class Notes:
    """Writes once per second, while there is something to write.

    The units with the most failures come first. Each write returns the failures of other processes.
    """

    def __init__(self, store: LoginStore, throttle: Throttle) -> None:
        self._store = store
        self._throttle = throttle
        self.failures: Counter[str] = Counter()
        """Failures that are not in the database yet, by unit."""
        self._seen: set[tuple[str, Network]] = set()
        self._task: asyncio.Task[None] | None = None
        self._writes = 0
        self._logged = -_LOG_INTERVAL

    def failed(self, unit: str) -> None:
        """Count a failure, here and soon over all processes."""
        self._throttle.failed(unit)
        if unit in self.failures or len(self.failures) < _DUE:
            self.failures[unit] += 1
            self._begin()

    def seen(self, name: str, network: Network) -> None:
        """Note that a user logged in from a network, if not too much else is to be noted."""
        if len(self._seen) < _DUE:
            self._seen.add((name, network))
            self._begin()

    def _begin(self) -> None:
        if not self._task or self._task.done():
            loop = asyncio.get_running_loop()
            apart = copy_context()
            apart.run(unbind_contextvars, "session", "listener")  # its lines are about all sessions
            self._task = loop.create_task(self._run(), context=apart)

    async def _run(self) -> None:
        while self.failures or self._seen:
            await asyncio.sleep(_INTERVAL)
            await self.write()

    async def write(self) -> None:
        """Write the first of the failures and logins that are due."""
        try:
            async with asyncio.timeout(_TIME):
                await self._write_failures()
                await self._write_seen()
                if not self._writes % _FORGET:
                    await self._store.forget()
                self._writes += 1
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            now = time.monotonic()
            if now >= self._logged + _LOG_INTERVAL:
                self._logged = now
                log.warning("failed logins are not written", reason=str(error) or "timeout")

    async def _write_failures(self) -> None:
        throttle = self._throttle
        most = heapq.nlargest(_UNITS, self.failures.items(), key=lambda item: item[1])
        if not most:
            return
        rows = [(unit, count, count * throttle.cost(unit)) for unit, count in most]
        levels = await self._store.failed(rows, 2 * throttle.period)
        for unit, count in most:
            self.failures[unit] -= count
            if not self.failures[unit]:
                del self.failures[unit]
        throttle.learn([unit for unit, _ in most], levels, self.failures)

    async def _write_seen(self) -> None:
        some = list(self._seen)[:_SEEN]
        if some:
            await self._store.seen(some)
            self._seen.difference_update(some)

    async def close(self) -> None:
        """Write once more, and stop."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.failures or self._seen:
            await self.write()
