"""Leases of rows in the database: where they begin, are renewed and are given back."""

from __future__ import annotations

from pgmta.mail.metadata import CAMPAIGN
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.schema import Schema

_SQL = queries("lease")

_BEGIN = _SQL["begin"].fill(campaign="")
_BEGIN_CAMPAIGNS = _SQL["begin"].fill(campaign=b" " + _SQL["campaign"])

LEASE = _SQL["lease"]
"""The part of every claim that leases rows: it sets owner, token and end of the lease."""


class RowLeases:
    """The leases of one worker, which `owner` names; a lease lasts `seconds`."""

    def __init__(
        self, link: Link, owner: str, seconds: float, schema: Schema | None = None
    ) -> None:
        self._link = link
        self._owner = owner
        self._schema = schema or Schema()
        self.seconds = seconds

    async def renew(self, items: list[Item]) -> dict[int, bool]:
        """Renew leases and return the ids of the rows that are still ours.

        The value is False if another transaction has locked the row: its lease is not renewed then.
        Raises StoreUnavailable.
        """
        ids, tokens = [item.id for item in items], [item.token for item in items]
        params = {"ids": ids, "tokens": tokens, "lease": self.seconds}
        return {row[0]: row[1] for row in await self._link.run(_SQL["renew"], params)}

    async def mark_begun(self, items: list[Item]) -> set[int]:
        """Note that the transactions of rows with `once` begin; return the ids of those that may.

        Raises StoreUnavailable, psycopg.Error.
        """
        ids, tokens = [item.id for item in items], [item.token for item in items]
        of_campaigns = any(item.metadata and CAMPAIGN in item.metadata for item in items)
        statement = _BEGIN_CAMPAIGNS if of_campaigns else _BEGIN
        rows = await self._link.run(statement, {"ids": ids, "tokens": tokens})
        return {row[0] for row in rows}

    async def withdraw(self, items: list[Item]) -> set[int]:
        """Note that these transactions have not begun; return the ids of the rows.

        Raises StoreUnavailable, psycopg.Error.
        """
        ids, tokens = [item.id for item in items], [item.token for item in items]
        rows = await self._link.run(_SQL["withdraw"], {"ids": ids, "tokens": tokens})
        return {row[0] for row in rows}

    async def give_back(self, known: list[int]) -> int:
        """Give back rows that carry our name and are not known; return how many.

        It follows a claim that broke off, because that may have been committed. Raises
        StoreUnavailable, SchemaMismatch.
        """
        self._schema.require()
        params = {"owner": self._owner, "ids": known}
        return len(await self._link.run(_SQL["give_back"], params))
