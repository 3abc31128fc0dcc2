"""Vacuums the room of delivered content, and tables with many dead rows."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("vacuum")
_BEGIN, _CROWDED = (_SQL[name].fill(may=_SQL["may"]) for name in ("begin", "crowded"))


class NotAllowed(Exception):
    """Our role may not vacuum."""


class Space:
    """Vacuums over a link that has no other user."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def reclaim(self, *, shorten: bool = False) -> int | None:
        """Vacuum the space of deleted chunks, and return the octets that the file has then.

        Returns None if another session vacuums. `shorten` also gives the empty end of the file
        back to the file system. Raises NotAllowed if the role may not vacuum, StoreUnavailable,
        psycopg.Error.
        """
        ((may, free),) = await self._link.run(_BEGIN)
        if not may:
            raise NotAllowed
        if not free:
            return None
        async with self._link.use() as connection:
            statement = _SQL["shorten" if shorten else "reclaim"]
            await connection.execute(statement, prepare=False)
        ((octets,),) = await self._link.run(_SQL["finish"])
        if shorten:
            await self._link.close()  # the next time may be an hour away
        return int(octets)

    async def vacuum_crowded(self) -> int:
        """Vacuum the tables that have more dead rows than their settings allow; return how many.

        Tables that the role may not vacuum are left to autovacuum. Raises StoreUnavailable,
        psycopg.Error.
        """
        names = [name for (name,) in await self._link.run(_CROWDED)]
        for name in names:
            async with self._link.use() as connection:
                await connection.execute(_SQL["vacuum"].fill(table=name), prepare=False)
        return len(names)
