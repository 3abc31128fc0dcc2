"""Whether tokens can be consumed now, and what else is served."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.metrics.database_look import KeptReason
from pgmta.postgres.link_pool import LinkPool
from pgmta.store.admin.daemons import takes_changes
from pgmta.store.schema import Schema
from queued.web.web_part import Served


class Readiness(KeptReason):
    """Asks the database, and each of its parts, which are those that are used now."""

    def __init__(self, pool: LinkPool, schema: Schema, parts: Sequence[Served] = ()) -> None:
        super().__init__()
        self.parts = parts
        self._pool = pool
        self._schema = schema

    async def _ask(self) -> str:
        if self._schema.problem:
            return "The database has another version."
        try:
            for part in self.parts:
                if reason := await part.problem():
                    return reason
            return "" if await takes_changes(self._pool) else "The database is read-only."
        except (StoreUnavailable, psycopg.Error):
            return "The database does not answer."
