"""Recipients who unsubscribe by a link: the statements of `queued web`."""

from __future__ import annotations

from pgmta.postgres.link_pool import LinkPool
from pgmta.store.queries import queries

_SQL = queries("unsubscriptions")


class UnsubscriptionTable:
    """Unsubscribes recipients. The methods raise StoreUnavailable and psycopg.Error."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool

    async def unsubscribe(self, campaign: int, number: int) -> bool:
        """Suppress the address of a campaign's recipient; return False if there is none."""
        fields = {"campaign": campaign, "number": number}
        ((known,),) = await self._pool.run(_SQL["unsubscribe"], fields)
        return bool(known)

    async def unsubscribable(self) -> bool:
        """Return whether the login may unsubscribe recipients."""
        ((found,),) = await self._pool.run(_SQL["unsubscribable"], {})
        return bool(found)
