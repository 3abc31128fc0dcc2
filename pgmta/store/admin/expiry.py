"""Old campaigns, templates and tokens: removed in batches, each a separate commit."""

from __future__ import annotations

from typing import Any

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("expiry")
_BATCH = 2000  # rows of a commit


class Expiry:
    """Removes rows by their ages in seconds; the methods return how many.

    They raise StoreUnavailable, psycopg.Error.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def recipients(self, age: float) -> int:
        """Remove recipients of campaigns that are over so long."""
        return await self._repeat("recipients", {"age": age})

    async def campaigns(self, age: float) -> int:
        """Remove campaigns whose recipients are gone."""
        return await self._repeat("campaigns", {"age": age})

    async def templates(self, age: float) -> int:
        """Remove versions of templates that were replaced so long ago and that nothing has."""
        return await self._repeat("templates", {"age": age})

    async def tokens(self, age: float, collections: float) -> int:
        """Remove tokens that are expired so long, and collections of that age."""
        return await self._repeat("tokens", {"age": age, "collections": collections})

    async def _repeat(self, name: str, ages: dict[str, Any]) -> int:
        removed = 0
        while True:
            ((rows,),) = await self._link.run(_SQL[name], {**ages, "batch": _BATCH})
            if not rows:
                return removed
            removed += rows
