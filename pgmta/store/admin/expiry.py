"""Rows whose time is over: removed in batches, each a separate commit."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import Statement, queries

_SQL = queries("expiry")
_ROWS_PER_COMMIT = 2000


async def remove_batches(link: Link, statement: Statement, **ages: float) -> int:
    """Run a statement that removes one batch until it removes nothing; return how many rows.

    It returns how many it has removed, by ages in seconds. Raises StoreUnavailable, psycopg.Error.
    """
    removed = 0
    while True:
        ((rows,),) = await link.run(statement, {**ages, "batch": _ROWS_PER_COMMIT})
        if not rows:
            return removed
        removed += rows


class Expiry:
    """Removes rows by their ages in seconds; the methods return how many.

    They raise StoreUnavailable, psycopg.Error.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def templates(self, age: float) -> int:
        """Remove versions of templates that were replaced so long ago and that nothing has."""
        return await remove_batches(self._link, _SQL["templates"], age=age)
