"""Room that delivered content leaves behind."""

from __future__ import annotations

from queued.db import Link
from queued.store.queries import queries

_SQL = queries("space")


class Space:
    """The pages of message_chunks."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def allowed(self) -> bool:
        """Whether our role may vacuum them; if not, autovacuum does, later."""
        ((allowed,),) = await self._link.run(_SQL["allowed"])
        return bool(allowed)

    async def reclaim(self, *, shorten: bool = False) -> None:
        """Have what is deleted written on again; nothing if somebody else is at it.

        `shorten` gives the empty end of the file back to the file system, too. Raises
        StoreUnavailable, psycopg.Error.
        """
        async with self._link.use() as connection:
            statement = _SQL["shorten" if shorten else "reclaim"]
            await connection.execute(statement.encode(), prepare=False)
