"""Orders of operators to the processes of queued: mail to stop, a question, a connection to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from pgmta.errors import SchemaMismatch, StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.postgres.notify import News
from pgmta.store.schema import Schema

UNHEARD_S = 0.5
"""Seconds between two reads, at least; without notifications an order is known within a second."""
HEARD_S = 5.0
"""Seconds between two reads while notifications arrive."""

log = get("orders")


class Orders:
    """Has features read their orders when NOTIFY tells of one, and every few seconds."""

    def __init__(self, link: Link, schema: Schema) -> None:
        self.link = link
        """The connection of those who read."""
        self.news = News()
        """Reports orders; set `came` to have them read at once."""
        self._schema = schema
        self._readers: dict[str, Callable[[], Awaitable[None]]] = {}
        self._failing: set[str] = set()

    def add_reader(self, kind: str, read: Callable[[], Awaitable[None]]) -> None:
        """Have a feature read its orders; it raises StoreUnavailable, psycopg.Error."""
        self._readers[kind] = read

    async def run(self) -> None:
        """Have them read again and again, until cancelled."""
        known = False
        while True:
            await asyncio.sleep(UNHEARD_S)
            if self.news.heard and known:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARD_S):
                        await self.news.came.wait()
            self.news.came.clear()
            known = await self._read_all()

    async def _read_all(self) -> bool:
        """Return whether all could read. The first of several failures of each is logged."""
        try:
            self._schema.require()
        except SchemaMismatch:
            return False
        for kind, read in self._readers.items():
            try:
                await read()
            except (StoreUnavailable, psycopg.Error) as error:
                if kind not in self._failing:
                    log.warning("orders are not read", kind=kind, reason=faults.one_line(error))
                self._failing.add(kind)
            else:
                self._failing.discard(kind)
        return not self._failing
