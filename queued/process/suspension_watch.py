"""Keeps what a process knows of the suspensions up to date, for all its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psycopg

from pgmta.errors import SchemaMismatch, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item, ReasonToWait
from pgmta.postgres import faults
from pgmta.postgres.notify import News
from pgmta.store.records.suspensions import SUSPENDED, SuspensionTable
from pgmta.store.schema import Schema
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.gate import Keeper
from queued.process.inquiry_answers import InquiryAnswers
from queued.process.suspended_mail import SuspendedMail, reason_of

_EVERY = 0.4  # seconds between looks, at least; without notifications attempts stop in a second
_SELDOM = 5.0  # seconds between looks while notifications arrive

log = get("suspensions")


class SuspensionWatch(Keeper):
    """Looks at the number of changes when NOTIFY reports one, and reads the suspensions again.

    Rows that meet an SQL condition carry the suspension: PostgreSQL finds them, when they are
    claimed and after each change. The same look finds inquiries, which `answers` gets.
    """

    def __init__(
        self, table: SuspensionTable, schema: Schema, answers: InquiryAnswers | None = None
    ) -> None:
        super().__init__()
        self._answers = answers
        self.mail = SuspendedMail()
        """The suspensions."""
        self.leased: list[Mapping[int, Item]] = []
        """The rows of each worker, by their ids."""
        self.news = News()
        """Reports changes."""
        self._table = table
        self._schema = schema
        self._know(0)
        self._learnt: dict[tuple[int, str], None] = {}
        self._known: set[tuple[int, str]] = set()
        self._failing = False  # whether the last look by a condition failed

    def _know(self, version: int) -> None:
        self.version = version
        """Changes so far, as they are known; 0: nothing is known."""
        self.ready, self.active = version > 0, self.mail.active
        self.changed()

    def add_worker(self, leased: Mapping[int, Item]) -> None:
        """Look at the rows of a worker after each change."""
        self.leased.append(leased)

    async def get_ready(self) -> None:
        """Return once the suspensions are known. Raises what the database does."""
        self._schema.require()
        await self._look()

    async def look_at(self, items: Sequence[Item]) -> None:
        """Find which rows meet an SQL condition."""
        if self.mail.conditional:
            await self.mark(items)

    def find_rows(
        self, items: Sequence[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        """Return the places of the rows that are suspended."""
        return self.mail.find_rows(items, destination, host)

    def find_host(self, destination: Destination, host: str) -> ReasonToWait | None:
        """Return the suspension of an MX host."""
        return self.mail.find_host(destination, host)

    def was_closed(self, destination: Destination, reason: ReasonToWait) -> None:
        """Note that the mail of a domain leads to a suspended MX host."""
        pair = reason.number, destination.domain
        if reason.kind == SUSPENDED and pair not in self._known:
            self._learnt[pair] = None
            self.news.came.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        failed = False
        while True:
            await asyncio.sleep(_EVERY)
            if self.news.heard and self.version and not failed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SELDOM):
                        await self.news.came.wait()
            self.news.came.clear()
            try:
                self._schema.require()
                await self._look()
                failed = False
            except SchemaMismatch:
                continue
            except (StoreUnavailable, psycopg.Error) as error:
                if not failed:
                    log.warning("suspensions are not read", reason=faults.one_line(error))
                failed = True

    async def _look(self) -> None:
        version, asked = await self._table.version()
        if version != self.version:
            await self._read(version)
        if asked and self._answers:
            await self._answers.give()
        if learnt := list(self._learnt):
            await self._table.learn(learnt)
            log.info("domains lead to suspended MX hosts", number=len(learnt), first=learnt[0][1])
            for pair in learnt:
                self._learnt.pop(pair, None)
            self._known.update(learnt)

    async def _read(self, version: int) -> None:
        """Read the suspensions; their version is known once all rows are looked at."""
        found = await self._table.active()
        self._known = {(each.id, domain) for each in found for domain in each.domains}
        self.mail.set(found)
        self._know(self.version)
        log.debug("suspensions", number=len(found), version=version)
        items = [item for rows in self.leased for item in rows.values()]
        if not self.mail.conditional:
            for item in items:
                item.reason_to_wait = None
        elif not await self.mark(items):
            return
        self._know(version)

    async def mark(self, items: Sequence[Item]) -> bool:
        """Note at each row the suspension whose SQL condition it meets; return whether it is known.

        While PostgreSQL does not answer, it waits: the rows must not go. After another error, which
        is logged, the next look does it again.
        """
        while items:
            try:
                found = await self._table.under([item.id for item in items])
            except StoreUnavailable:
                await asyncio.sleep(_EVERY)
                continue
            except psycopg.Error as error:
                if not self._failing:
                    log.error("conditions of suspensions fail", reason=faults.one_line(error))
                self._failing = True
                self._know(0)
                return False
            for item in items:
                number = found.get(item.id)
                item.reason_to_wait = reason_of(number) if number else None
            self._failing = False
            break
        return True
