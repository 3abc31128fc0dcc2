"""The leases that a worker has: renewed while deliveries last, checked before every final dot."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item, Outcome
from pgmta.states import Event
from pgmta.store.queue.lease import RowLeases

_MAX_MARGIN_S = 1.0  # before its end at which a lease no longer counts
_RENEWALS_PER_LEASE = 3  # renewals in the time of a lease
_MAX_LOOK_INTERVAL_S = 5.0  # for rows without an owner

log = get("lease")


@dataclass(slots=True, eq=False)
class _Batch:
    """Rows of one statement, and the ids that it returned."""

    items: list[Item] = field(default_factory=list)
    ids: set[int] | None = None  # None: the query has not ended


class _Notes:
    """Notes on transactions: one statement serves all that came while the last was under way."""

    def __init__(self, write: Callable[[list[Item]], Awaitable[set[int]]], failure: str) -> None:
        self._write = write
        self._failure = failure
        self._next = _Batch()
        self._writing = asyncio.Lock()

    async def note(self, items: list[Item]) -> set[int]:
        """Return the ids of all rows that the statement has changed, none if it failed."""
        batch = self._next
        batch.items += items
        async with self._writing:
            if batch.ids is None:
                if batch is self._next:
                    self._next = _Batch()
                try:
                    batch.ids = await self._write(batch.items)
                except (StoreUnavailable, psycopg.Error) as error:
                    log.warning(self._failure, rows=len(batch.items), reason=str(error))
                    batch.ids = set()
        return batch.ids


class Leases:
    """Knows which rows this worker has leased, and until when by its own clock.

    A leased row has an owner: the part of the worker that has it at the moment, from its claim to
    the commit of its outcome. A row that an error has dropped has none, wherever that was. Then its
    attempt ends, because no other part would ever end it while its lease is renewed.
    """

    def __init__(self, leases: RowLeases) -> None:
        self._leases = leases
        self.items: dict[int, Item] = {}
        """Rows that this worker has leased, or had when it last knew, by row id."""
        self.reserved: set[int] = set()
        """Ids of those in reserved slots."""
        self._watchers: list[asyncio.Event] = []
        self.dropped = 0
        """Rows settled since the start."""
        self.owners: list[Callable[[], Iterable[Item]]] = []
        """The parts that may have rows: each function returns those that its part has now."""
        self.lost: Callable[[list[Item]], None] = lambda _: None
        """Gets rows without an owner, and ends their attempts."""
        self._unowned: set[tuple[int, int]] = set()  # ids and tokens of such rows at the last look
        self._offered: set[int] = set()  # rows whose next hop may have them already
        self._until: dict[int, float] = {}
        self._again: dict[int, Item] = {}  # later claims of rows whose attempts last
        self.claiming: dict[object, set[int]] = {}
        """For each claim under way, by its loop: the rows whose delivery was settled meanwhile."""
        self._beginnings = _Notes(leases.mark_begun, "rows with once can't begin")
        self._withdrawals = _Notes(leases.withdraw, "rows with once count as begun")

    def watch(self) -> asyncio.Event:
        """Return a new event, which is set whenever a slot becomes free."""
        event = asyncio.Event()
        self._watchers.append(event)
        return event

    def add_claimed(
        self, items: list[Item], claimed: float, delivered: set[int], reserved: bool = False
    ) -> list[Item]:
        """Note the rows of a claim that was sent at `claimed`, by the monotonic clock.

        `delivered` are the ids that `claiming` had for the claim. `reserved` says that they are
        urgent rows for reserved slots.

        Returns the rows that may be begun. After an outage a row may be claimed again while
        this worker's attempt lasts, or its outcome waits. It has to wait for `drop`. The delivery
        of a row may also be settled after this claim, and answered first: then the row is gone.
        """
        if delivered:
            items = [item for item in items if item.id not in delivered]
        fresh = [item for item in items if item.id not in self.items]
        if len(fresh) < len(items):
            self._again.update((item.id, item) for item in items if item.id in self.items)
        for item in fresh:
            self.items[item.id] = item
            self._until[item.id] = claimed + self._leases.seconds
        if reserved:
            self.reserved.update(item.id for item in fresh)
        return fresh

    def drop(self, outcome: Outcome) -> Item | None:
        """Forget a row that is settled; return its later claim, if it was claimed again."""
        item = outcome.item
        self.dropped += 1
        if outcome.event is Event.DELIVERED:
            for ids in self.claiming.values():
                ids.add(item.id)
        for event in self._watchers:
            event.set()
        current = self.items.get(item.id)
        if not current or current.token != item.token:
            return None
        del self.items[item.id]
        del self._until[item.id]
        self.reserved.discard(item.id)
        self._offered.discard(item.id)
        return self._again.pop(item.id, None)

    def valid(self, items: list[Item]) -> bool:
        """Return whether all these rows are certainly still leased to this worker.

        The next hop may have their mail from then on.
        """
        if held := self._holds(items):
            self._offered.update([item.id for item in items])
        return held

    def in_doubt(self, item: Item) -> bool:
        """Return whether the next hop may have the mail of a row that is not settled."""
        return item.id in self._offered

    def _holds(self, items: list[Item]) -> bool:
        limit = time.monotonic() + min(
            _MAX_MARGIN_S, self._leases.seconds / (2 * _RENEWALS_PER_LEASE)
        )
        return all(self._until.get(item.id, 0.0) > limit for item in items)

    async def begin(self, items: list[Item]) -> bool:
        """Note in the database that the transaction of rows with `once` begins.

        Returns False if a lease may be lost: then no command of the transaction may be sent. One
        statement serves all transactions that came while the last one was under way.
        """
        items = [item for item in items if item.once]
        begun = await self._beginnings.note(items)
        return self._holds(items) and all(item.id in begun for item in items)

    async def withdraw(self, items: list[Item]) -> None:
        """Note that the transaction of rows with `once` has not begun."""
        await self._withdrawals.note([item for item in items if item.once])

    async def keep(self) -> None:
        """Renew the leases of rows that are not settled; runs until cancelled.

        Between the renewals it looks for rows without an owner.
        """
        beat = self._leases.seconds / _RENEWALS_PER_LEASE
        looks = math.ceil(beat / _MAX_LOOK_INTERVAL_S)
        while True:
            for _ in range(looks):
                await asyncio.sleep(beat / looks)
                self._look()
            before = time.monotonic()
            soon = before + self._leases.seconds * (_RENEWALS_PER_LEASE - 1) / _RENEWALS_PER_LEASE
            ending = [item for item in self.items.values() if 0 < self._until[item.id] < soon]
            ending += self._again.values()
            if not ending:
                continue
            try:
                ours = await self._leases.renew(ending)
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("can't renew leases", rows=len(ending), reason=str(error))
                continue
            for item in ending:
                if self.items.get(item.id) is not item:
                    continue  # the row was settled meanwhile, or has a later claim
                if item.id in ours and item.id not in self._again:
                    if ours[item.id]:
                        self._until[item.id] = before + self._leases.seconds
                else:
                    self._until[item.id] = 0.0
                    log.warning("lease lost", row=item.id, message=item.message_id)

    def unowned(self, items: Iterable[Item]) -> list[Item]:
        """Return those of these rows that are leased here, and that no part has."""
        owned = {(item.id, item.token) for rows in self.owners for item in rows()}
        return [
            ours
            for item in items
            if (ours := self.items.get(item.id))
            and ours.token == item.token
            and (item.id, item.token) not in owned
        ]

    def _look(self) -> None:
        """End the attempts of rows that had no owner at the last look either."""
        unowned = {(item.id, item.token): item for item in self.unowned(self.items.values())}
        before, self._unowned = self._unowned, set(unowned)
        if lost := [item for key, item in unowned.items() if key in before]:
            self.lost(lost)
