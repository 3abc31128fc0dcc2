"""Whether tokens can be consumed now, and what else is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.metrics.database_look import KeptReason
from pgmta.postgres.link_pool import LinkPool
from pgmta.store.admin.daemons import takes_changes
from pgmta.store.schema import Schema

type Ask = Callable[[], Awaitable[str]]
"""Returns why a part can't be served now; '' if it can. Raises StoreUnavailable, psycopg.Error."""


class Readiness(KeptReason):
    """Asks the database, and each of its parts, which are those that are used now."""

    def __init__(self, pool: LinkPool, schema: Schema, parts: Sequence[Ask] = ()) -> None:
        super().__init__()
        self.parts = parts
        self._pool = pool
        self._schema = schema

    async def _ask(self) -> str:
        if self._schema.problem:
            return "The database has another version."
        try:
            for ask in self.parts:
                if reason := await ask():
                    return reason
            return "" if await takes_changes(self._pool) else "The database is read-only."
        except (StoreUnavailable, psycopg.Error):
            return "The database does not answer."
