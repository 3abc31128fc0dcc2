"""A copy of the table suppression_sieve: which addresses can't be suppressed."""

from __future__ import annotations

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
        self._seen: str | None = None
        self._parts: dict[int, bytes] = {}

    async def catch_up(self) -> None:
        """Learn what was committed before this call. Raises StoreUnavailable, psycopg.Error."""
        ((seen, numbers, parts),) = await self._link.look(_SQL["news"], {"seen": self._seen})
        for number, part in zip(numbers or (), parts or (), strict=True):
            known = self._parts.get(number)
            self._parts[number] = _union(known, part) if known else part
        self._seen = seen

    def may_have(self, address: str) -> bool:
        """Return whether the database has to be asked about an address."""
        if not address.isascii() or address[:1] in ('"', ""):
            return True  # mailbox_key() in SQL does more than lower() with these
        digest = sha256(address.lower().encode()).digest()
        part = self._parts.get(digest[0] << 8 | digest[1])
        if part is None:
            return False
        place = (digest[2] & 7) << 8 | digest[3]
        return bool(part[place >> 3] & 128 >> (place & 7))


def _union(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) | int.from_bytes(other)).to_bytes(len(one))
