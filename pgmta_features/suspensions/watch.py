"""Keeps what a process knows of the suspensions up to date, for all its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item, ReasonToWait
from pgmta.postgres import faults
from pgmta.store.schema import Schema
from pgmta_features.suspensions.store import SUSPENDED, SuspensionTable
from pgmta_features.suspensions.suspended_mail import SuspendedMail, reason_of
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.gate import Keeper
from queued.process.queued_process import QueuedProcess

RETRY_PAUSE_S = 0.4
"""Between looks at rows while PostgreSQL is away."""

log = get("suspensions")


class SuspensionWatch(Keeper):
    """Looks at the number of changes, and reads the suspensions again after one.

    Rows that meet an SQL condition carry the suspension: PostgreSQL finds them, when they are
    claimed and after each change. `leased` yields the rows of all workers, and `read_soon` has
    `read` called soon.
    """

    def __init__(
        self,
        table: SuspensionTable,
        schema: Schema,
        leased: Callable[[], Iterable[Item]],
        read_soon: Callable[[], None],
    ) -> None:
        super().__init__()
        self.mail = SuspendedMail()
        """The suspensions."""
        self._table = table
        self._schema = schema
        self._leased = leased
        self._read_soon = read_soon
        self._know(0)
        self._learnt: dict[tuple[int, str], None] = {}
        self._known: set[tuple[int, str]] = set()
        self._unknown: list[int] = []  # rows at which the last look by a condition failed

    def _know(self, version: int) -> None:
        self.version = version
        """Changes so far, as they are known; 0: nothing is known."""
        self.ready, self.looks, self.active = version > 0, self.mail.conditional, self.mail.active
        self.changed()

    async def get_ready(self) -> None:
        """Return once the suspensions are known. Raises what the database does."""
        self._schema.require()
        await self.read()

    async def look_at(self, items: Sequence[Item]) -> None:
        """Find which rows meet an SQL condition."""
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
            self._read_soon()

    async def read(self) -> None:
        """Read what has changed, and note what was learnt. Raises what the database does."""
        version = await self._table.version()
        if version != self.version:
            await self._read_all(version)
        if learnt := list(self._learnt):
            await self._table.learn(learnt)
            log.info("domains lead to suspended MX hosts", number=len(learnt), first=learnt[0][1])
            for pair in learnt:
                self._learnt.pop(pair, None)
            self._known.update(learnt)

    async def _read_all(self, version: int) -> None:
        """Read the suspensions; their version is known once all rows are looked at."""
        found = await self._table.active()
        self._known = {(each.id, domain) for each in found for domain in each.domains}
        self.mail.set(found)
        self._know(self.version)
        log.debug("suspensions", number=len(found), version=version)
        items = list(self._leased())
        if self.mail.conditional:
            if self._unknown:  # while such a look fails, a claim would be in vain
                await self._table.under(self._unknown)
            await self.mark(items)
        else:
            for item in items:
                item.reason_to_wait = None
        self._unknown.clear()
        self._know(version)

    async def mark(self, items: Sequence[Item]) -> None:
        """Note at each row the suspension whose SQL condition it meets.

        While PostgreSQL does not answer, it waits: the rows must not go. Raises psycopg.Error after
        another error, which is logged; then nothing is known until a look succeeds.
        """
        while items:
            ids = [item.id for item in items]
            try:
                found = await self._table.under(ids)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            except psycopg.Error as error:
                if not self._unknown:
                    log.error("conditions of suspensions fail: mail waits",
                              reason=faults.one_line(error))  # fmt: skip
                self._unknown = ids
                self._know(0)
                raise
            for item in items:
                number = found.get(item.id)
                item.reason_to_wait = reason_of(number) if number else None
            return


def add_watch(process: QueuedProcess) -> None:
    """Have a process keep suspended mail back."""
    orders = process.orders
    watch = SuspensionWatch(
        SuspensionTable(orders.link, process.costly), process.schema, process.leased,
        orders.news.came.set,
    )  # fmt: skip
    process.gate.add_keeper(watch)
    orders.add_reader("suspensions", watch.read)
