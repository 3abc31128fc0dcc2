"""A copy of the table suppression_sieve: which addresses can't be suppressed."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from pgmta.postgres.link import Link
from pgmta.store.queries import feature_queries

_SQL = feature_queries("suppressions")


class Sieve:
    """Bits by the hashes of addresses: one that has none is neither suppressed nor forgotten.

    The database's own sieve costs each address several pages of memory that are seldom in a cache.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = asyncio.Lock()
        self._seen: str | None = None
        self._session = 0  # that of `_seen`, by its number on the link
        self._parts: dict[int, bytes] = {}

    async def catch_up(self) -> bool:
        """Learn what was committed before this call, and return whether anything was.

        Raises StoreUnavailable, psycopg.Error.
        """
        async with self._lock:  # after a failover the first caller reads all for the others
            seen = self._seen if self._link.sessions == self._session else None
            rows = await self._link.look(_SQL["news"], {"seen": seen})
            if seen is not None and self._link.sessions != self._session:
                rows = await self._link.look(_SQL["news"], {"seen": None})
            ((self._seen, parts, bits),) = rows
            self._session = self._link.sessions
            for part, told in zip(parts or (), bits or (), strict=True):
                known = self._parts.get(part)
                self._parts[part] = _union(known, told) if known else told
            return bool(parts)

    def may_have(self, address: str) -> bool:
        """Return whether the database has to be asked about an address."""
        if not address.isascii() or address[:1] in ('"', ""):
            return True  # mailbox_key() in SQL does more than lower() with these
        digest = sha256(address.lower().encode()).digest()
        bits = self._parts.get(digest[0] << 8 | digest[1])
        if bits is None:
            return False
        place = (digest[2] & 7) << 8 | digest[3]
        return bool(bits[place >> 3] & 128 >> (place & 7))


def _union(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) | int.from_bytes(other)).to_bytes(len(one))
