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

REMEMBER_S = 3600.0
"""A host that failed twice within this time gets plain text for as long."""
_MAX_ANSWER_AGE_S = 30.0  # short, because other workers write too
_ANSWER_TIMEOUT_S = 5.0  # because a session waits meanwhile
_MAX_HOSTS = 10_000  # with one failure, in memory
_MAX_REASON_CHARACTERS = 300


class BrokenTlsHosts:
    """Knows the hosts from memory, and reads them again when that is old.

    Without the database the memory counts: a handshake that fails again costs a connection.
    """

    def __init__(self, link: Link, minimum: str, remember: float = REMEMBER_S) -> None:
        self._link = link
        self._lock = asyncio.Lock()
        self._minimum = ""
        self.configure(minimum, remember)

    def configure(self, minimum: str, remember: float = REMEMBER_S) -> None:
        """Keep hosts for `remember` seconds; `minimum` is the lowest version of TLS.

        A host that failed with another lowest version may well work with this one.
        """
        self._time = remember
        if minimum != self._minimum:
            self._minimum = minimum
            self._since = time.monotonic()
            self._once: dict[str, float] = {}  # hosts, and the time of their first failure
            self._until: dict[str, float] = {}
            self._read = float("-inf")

    async def known(self, host: str) -> bool:
        """Return whether the host's TLS failed a while ago."""
        if time.monotonic() > self._read + _MAX_ANSWER_AGE_S:
            async with self._lock:
                if time.monotonic() > self._read + _MAX_ANSWER_AGE_S:
                    await self._reread()
        return self._until.get(host, 0.0) > time.monotonic()

    async def _reread(self) -> None:
        minimum = self._minimum
        with suppress(StoreUnavailable, psycopg.Error, TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                rows = await self._link.run(_SQL["all"], {"minimum": minimum})
            now = time.monotonic()
            if minimum == self._minimum:
                self._until = {host: now + left for host, left in rows}
        if minimum == self._minimum:
            self._read = time.monotonic()

    def worked(self, host: str) -> None:
        """Note that TLS with the host works."""
        self._once.pop(host, None)

    async def failed(self, host: str, reason: str, begun: float) -> None:
        """Keep the host for a while if this is its second failure, without a success in between.

        `begun` is when the connection began, by the monotonic clock. One cause may end all
        connections at once. So the second one begins after the first failure.
        """
        if begun < self._since:
            return
        now = time.monotonic()
        first = self._once.get(host)
        if first is None or first < now - self._time:
            self._once.pop(host, None)  # the last one goes to the end
            self._once[host] = now
            if len(self._once) > _MAX_HOSTS:
                del self._once[next(iter(self._once))]
            return
        if begun < first:
            return
        del self._once[host]
        self._until[host] = now + self._time
        params = {"host": host, "time": self._time, "reason": reason[:_MAX_REASON_CHARACTERS],
                  "minimum": self._minimum}  # fmt: skip
        with suppress(StoreUnavailable, psycopg.Error, TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._link.run(_SQL["remember"], params)

    async def expire(self) -> int:
        """Remove hosts whose time is over; return how many. Raises StoreUnavailable."""
        return len(await self._link.run(_SQL["expire"]))
