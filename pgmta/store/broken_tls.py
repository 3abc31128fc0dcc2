"""Hosts whose TLS handshake failed, for all workers."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("broken_tls")

_FRESH = 30.0  # seconds for which an answer of the database counts, because other workers write too
_TIME = 5.0  # seconds for the database, because a session waits meanwhile
_REASON = 300  # characters of a reason that are kept


class BrokenTlsHosts:
    """Knows the hosts from memory, and reads them again when that is old.

    Without the database the memory counts: a handshake that fails again costs a connection.
    """

    def __init__(self, link: Link, remember: float) -> None:
        self._link = link
        self.time = remember
        """Seconds for which a host is kept."""
        self._until: dict[str, float] = {}
        self._read = float("-inf")
        self._lock = asyncio.Lock()

    async def known(self, host: str) -> bool:
        """Return whether the host's TLS failed a while ago."""
        if time.monotonic() > self._read + _FRESH:
            async with self._lock:
                if time.monotonic() > self._read + _FRESH:
                    await self._reread()
        return self._until.get(host, 0.0) > time.monotonic()

    async def _reread(self) -> None:
        with suppress(StoreUnavailable, psycopg.Error, TimeoutError):
            async with asyncio.timeout(_TIME):
                rows = await self._link.run(_SQL["all"])
            now = time.monotonic()
            self._until = {host: now + left for host, left in rows}
        self._read = time.monotonic()

    async def remember(self, host: str, reason: str) -> None:
        """Keep the host for a while."""
        self._until[host] = time.monotonic() + self.time
        params = {"host": host, "time": self.time, "reason": reason[:_REASON]}
        with suppress(StoreUnavailable, psycopg.Error, TimeoutError):
            async with asyncio.timeout(_TIME):
                await self._link.run(_SQL["remember"], params)

    async def expire(self) -> int:
        """Remove hosts whose time is over; return how many. Raises StoreUnavailable."""
        return len(await self._link.run(_SQL["expire"]))
