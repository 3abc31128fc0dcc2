"""Vacuums the room of delivered content."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("space")


class NotAllowed(Exception):
    """Our role may not vacuum."""


class Space:
    """Vacuums message_chunks over a link that has no other user."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def reclaim(self, *, shorten: bool = False) -> int | None:
        """Vacuum the space of deleted chunks, and return the octets that the file has then.

        Returns None if another session vacuums. `shorten` also gives the empty end of the file
        back to the file system. Raises NotAllowed if the role may not vacuum, StoreUnavailable,
        psycopg.Error.
        """
        ((may, free),) = await self._link.run(_SQL["begin"])
        if not may:
            raise NotAllowed
        if not free:
            return None
        async with self._link.use() as connection:
            statement = _SQL["shorten" if shorten else "reclaim"]
            await connection.execute(statement, prepare=False)
        ((octets,),) = await self._link.run(_SQL["finish"])
        return int(octets)
