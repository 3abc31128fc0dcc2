"""Recipients who unsubscribe by a link: the statements of `queued web`."""

from __future__ import annotations

from pgmta.compose.token import LinkNumbers
from pgmta.postgres.link_pool import LinkPool
from pgmta.store.queries import feature_queries

_SQL = feature_queries("suppressions")


class UnsubscriptionTable:
    """Unsubscribes recipients. The methods raise StoreUnavailable and psycopg.Error."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool

    async def unsubscribe(self, numbers: LinkNumbers) -> bool:
        """Suppress the address of the recipient whom a link names; return False if none is."""
        fields = {"list": numbers.list, "number": numbers.number, "date": numbers.date}
        ((known,),) = await self._pool.run(_SQL["unsubscribe"], fields)
        return bool(known)

    async def unsubscribable(self) -> bool:
        """Return whether the login may unsubscribe recipients."""
        ((found,),) = await self._pool.run(_SQL["unsubscribable"], {})
        return bool(found)
