"""Ends rows for suppressed recipients before their attempt, in all workers of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.mail.address import with_domain
from pgmta.model import Item, ReasonToWait
from pgmta.postgres.notify import News
from pgmta.states import Event
from pgmta.store.schema import Schema
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.gate import Keeper
from queued.process.queued_process import QueuedProcess

from .sieve import Sieve
from .suppression_look import SuppressionLook, asked_for


class SuppressionWatch(Keeper):
    """Looks at rows right after their claim, and at all leased ones when the list has changed.

    While the list is empty, no row is looked at. `leased` yields the rows of all workers. `news`
    has the list read again: a claim may learn of a change whose notice does not come.
    """

    def __init__(
        self,
        look: SuppressionLook,
        sieve: Sieve,
        schema: Schema,
        leased: Callable[[], Iterable[Item]],
        news: News,
    ) -> None:
        super().__init__()
        self.ready = False
        self._look = look
        self._sieve = sieve
        self._schema = schema
        self._leased = leased
        self._news = news

    def _know(self, *, ready: bool, looks: bool, active: bool) -> None:
        self.ready, self.looks, self.active = ready, looks, active
        self.changed()

    async def get_ready(self) -> None:
        """Return once it is known whether the list is empty. Raises what the database does."""
        self._schema.require()
        await self.read()

    async def look_at(self, items: Sequence[Item]) -> None:
        """Note at each row why its recipient is suppressed. Raises what the database does."""
        if await self._sieve.catch_up():
            self._news.came.set()
        # what is known stays: the answer may be older than that of a look after a change
        found = [(item, words) for item, words in await self._ask(items) if words]
        for item, words in found:
            item.suppressed = words
        if found:
            self._know(ready=self.ready, looks=self.looks, active=True)

    def find_rows(
        self, items: Sequence[Item], destination: Destination, host: str = ""
    ) -> dict[int, ReasonToWait]:
        """Return the places of rows whose recipients are suppressed: their end is final."""
        return {
            place: ReasonToWait(Event.SUPPRESS, 0, words)
            for place, item in enumerate(items)
            if (words := (item.original or item).suppressed)
        }

    async def read(self) -> None:
        """Look at all leased rows, if there are suppressions. Raises what the database does.

        After a failure nothing is claimed before a look has succeeded.
        """
        try:
            if await self._look.is_empty():
                self._know(ready=True, looks=False, active=False)
                return
            # claims that come from here on look at their rows themselves
            self._know(ready=self.ready, looks=True, active=self.active)
            await self._sieve.catch_up()
            for item, words in await self._ask(list(self._leased())):
                item.suppressed = words
            # the gate costs each mail, and few rows are suppressed
            active = any(item.suppressed for item in self._leased())
            self._know(ready=True, looks=True, active=active)
        except (StoreUnavailable, psycopg.Error):
            self._know(ready=False, looks=self.looks, active=self.active)
            raise

    async def _ask(self, items: Sequence[Item]) -> list[tuple[Item, str]]:
        """Return the rows that may be suppressed, each with the reason or ''."""
        likely = self._sieve.places_of([with_domain(item.recipient, item.domain) for item in items])
        pairs = [(items[place], asked) for place in likely if (asked := asked_for(items[place]))]
        if not pairs:
            return []
        words = await self._look.words([asked for _, asked in pairs])
        return [(item, why) for (item, _), why in zip(pairs, words, strict=True)]


def add_watch(process: QueuedProcess) -> None:
    """Have a process end rows for suppressed recipients."""
    orders, link = process.orders, process.orders.link
    watch = SuppressionWatch(
        SuppressionLook(link), Sieve(link), process.schema, process.leased, orders.news
    )
    process.gate.add_keeper(watch)
    orders.add_reader("suppressions", watch.read)
