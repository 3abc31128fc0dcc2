"""Leases of rows in the database: where they begin, are renewed and are given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.queries import Statement, queries
from pgmta.store.queue.companion import BeginCompanion, begin_companions
from pgmta.store.schema import Schema

_SQL = queries("lease")

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
        self._timeline: int | None = None  # of the server that has all leases and outcomes
        self.seconds = seconds
        self.returned: Callable[[list[int]], None] = lambda _: None
        """Gets the ids of rows that were given back."""

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
        companions = [each for each in begin_companions() if any(map(each.concerns, items))]
        rows = await self._link.run(_begin(tuple(companions)), {"ids": ids, "tokens": tokens})
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

        It follows a claim that broke off, because that may have been committed. On another timeline
        the leases of these rows end instead: their outcomes may be lost. Raises StoreUnavailable,
        SchemaMismatch.
        """
        self._schema.require()
        before = self._timeline or self._link.timeline
        params = {"owner": self._owner, "ids": known, "timeline": before}
        ids = [row[0] for row in await self._link.run(_SQL["give_back"], params)]
        if before != self._link.timeline:
            del params["timeline"]
            ended = await self._link.run(_SQL["let_run_out"], params)
            self.returned([row[0] for row in ended])
        self._timeline = self._link.timeline
        self.returned(ids)
        return len(ids)

    @property
    def moved(self) -> bool:
        """Whether the server is on another timeline, so that `give_back` has to look at leases."""
        if self._timeline is None:
            self._timeline = self._link.timeline
        return self._link.timeline != self._timeline


@cache
def _begin(companions: Sequence[BeginCompanion]) -> Statement:
    """Return the statement with the conditions of companions."""
    conditions = b"".join(b" AND " + each.condition for each in companions)
    return _SQL["begin"].fill(companions=conditions)
