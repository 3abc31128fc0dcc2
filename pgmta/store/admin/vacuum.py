"""Vacuums the room of delivered content, and tables with many dead rows."""

from __future__ import annotations

import time

from pgmta.postgres.link import Link
from pgmta.service import rest_after
from pgmta.store.queries import queries

_SQL = queries("vacuum")
_BEGIN, _CROWDED = (_SQL[name].fill(may=_SQL["may"]) for name in ("begin", "crowded"))


_VAIN_SHARE = 0.5  # of the dead rows that are left after a vacuum in vain
_MAX_VAIN_REST_S = 10.0  # so that the rows go soon after the snapshot that keeps them has ended


class NotAllowed(Exception):
    """Our role may not vacuum."""


class Space:
    """Vacuums over a link that has no other user."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._rests: dict[str, float] = {}  # seconds between two vacuums of a table

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

        A vacuum in vain meets rows that a backup, for example, may still see. It reads all of them,
        so such a table rests then, whoever vacuumed it. Tables that the role may not vacuum are
        left to autovacuum. Raises StoreUnavailable, psycopg.Error.
        """
        number = 0
        for name, dead, age in await self._link.run(_CROWDED):
            if age is not None and age < self._rests.get(name, 0.0):
                continue
            began = time.monotonic()
            async with self._link.use() as connection:
                await connection.execute(_SQL["vacuum"].fill(table=name), prepare=False)
            took = time.monotonic() - began
            ((left,),) = await self._link.run(_SQL["left"], {"table": name})
            vain = left > dead * _VAIN_SHARE
            self._rests[name] = rest_after(took, _MAX_VAIN_REST_S) if vain else 0.0
            number += 1
        return number
