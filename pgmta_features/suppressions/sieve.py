"""A copy of the table suppression_sieve: which addresses can't be suppressed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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

    def places_of(self, addresses: Sequence[str]) -> list[int]:
        """Return the places of the addresses about which the database has to be asked."""
        found = []
        get = self._parts.get
        for place, address in enumerate(addresses):
            # mailbox_key() in SQL does more than lower() with some
            if address.isascii() and address[:1] not in ('"', ""):
                digest = sha256(address.lower().encode()).digest()
                bits = get(digest[0] << 8 | digest[1])
                octet, bit = (digest[2] & 7) << 5 | digest[3] >> 3, 128 >> (digest[3] & 7)
                if bits is None or not bits[octet] & bit:
                    continue
            found.append(place)
        return found


def _union(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) | int.from_bytes(other)).to_bytes(len(one))
