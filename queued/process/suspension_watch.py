"""Keeps what a process knows of the suspensions up to date, for all its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import psycopg

from pgmta.errors import SchemaMismatch, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres import faults
from pgmta.store.records.suspensions import SuspensionTable
from pgmta.store.schema import Schema
from queued.delivery.transport.suspended_mail import SuspendedMail

_EVERY = 0.4  # seconds between looks: attempts stop within a second

log = get("suspensions")


class SuspensionWatch:
    """Looks at the number of changes, and reads the suspensions again after one.

    Rows that meet an SQL condition carry the suspension: PostgreSQL finds them, when they are
    claimed and after each change.
    """

    def __init__(self, table: SuspensionTable, schema: Schema) -> None:
        self.mail = SuspendedMail()
        """The suspensions, which workers and transports ask."""
        self.leased: list[Mapping[int, Item]] = []
        """The rows of each worker, by their ids."""
        self._table = table
        self._schema = schema
        self.version = 0
        """Changes so far, as they are known; 0: nothing is known."""
        self._learnt: dict[tuple[int, str], None] = {}
        self._known: set[tuple[int, str]] = set()
        self.mail.learn = self._learn

    def _learn(self, suspension: int, domain: str) -> None:
        if (suspension, domain) not in self._known:
            self._learnt[suspension, domain] = None

    async def require(self) -> None:
        """Return once the suspensions are known. Raises what the database does."""
        if not self.version:
            self._schema.require()
            await self._look()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        failed = False
        while True:
            await asyncio.sleep(_EVERY)
            if not self.leased:
                continue
            try:
                self._schema.require()
                await self._look()
                failed = False
            except SchemaMismatch:
                continue
            except (StoreUnavailable, psycopg.Error) as error:
                if not failed:
                    log.warning("suspensions are not read", reason=faults.words(error))
                failed = True

    async def _look(self) -> None:
        while self._learnt:
            pair = next(iter(self._learnt))
            await self._table.learn(*pair)
            log.info("domain leads to a suspended MX host", suspension=pair[0], domain=pair[1])
            self._learnt.pop(pair, None)
            self._known.add(pair)
        version = await self._table.version()
        if version == self.version:
            return
        found = await self._table.active()
        self._known = {(each.id, domain) for each in found for domain in each.domains}
        self.mail.set(found)
        self.version = version
        log.debug("suspensions", number=len(found), version=version)
        items = [item for rows in self.leased for item in rows.values()]
        if self.mail.conditional:
            await self.mark(items)
        else:
            for item in items:
                item.suspension = 0

    async def mark(self, items: Sequence[Item]) -> None:
        """Note at each row the suspension whose SQL condition it meets.

        While PostgreSQL does not answer, it waits: the rows must not go. Other errors are logged.
        """
        while items:
            try:
                found = await self._table.under([item.id for item in items])
            except StoreUnavailable:
                await asyncio.sleep(_EVERY)
                continue
            except psycopg.Error as error:
                log.error("conditions of suspensions fail", reason=faults.words(error))
                return
            for item in items:
                item.suspension = found.get(item.id, 0)
            return
