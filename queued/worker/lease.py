"""The leases a worker holds: prolonged while deliveries last, watched before every final dot."""

from __future__ import annotations

import asyncio
import time

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.store.claim import Claims

_MARGIN = 1.0  # seconds before the end at which a lease no longer counts as ours, at most
_BEATS = 3  # renewals in the time of a lease

log = get("lease")


class Leases:
    """Which rows are ours, and until when by our own clock."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._items: dict[int, Item] = {}
        self._until: dict[int, float] = {}
        self._again: dict[int, Item] = {}
        self._reserved: set[int] = set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def reserved(self) -> int:
        """Rows that have reserved places."""
        return len(self._reserved)

    def ids(self) -> list[int]:
        """Rows that we hold, or held when we last knew."""
        return list(self._items)

    def add(self, items: list[Item], claimed: float, reserved: bool = False) -> list[Item]:
        """Note a claim that was asked for at `claimed`, by the monotonic clock.

        It may be one of urgent rows, for places that are `reserved`.

        Returns what may be begun. A row whose lease ran out in an outage comes back to us while
        our own attempt still lasts, or its outcome still waits: it has to wait for `drop`.
        """
        fresh = [item for item in items if item.id not in self._items]
        self._again.update((item.id, item) for item in items if item.id in self._items)
        for item in fresh:
            self._items[item.id] = item
            self._until[item.id] = claimed + self._claims.lease
        if reserved:
            self._reserved.update(item.id for item in fresh)
        return fresh

    def drop(self, item: Item) -> Item | None:
        """Forget a row that is settled; return its later claim, if it has come back to us."""
        current = self._items.get(item.id)
        if not current or current.token != item.token:
            return None
        del self._items[item.id]
        del self._until[item.id]
        self._reserved.discard(item.id)
        return self._again.pop(item.id, None)

    def valid(self, items: list[Item]) -> bool:
        """Whether all these rows are certainly still ours."""
        limit = time.monotonic() + min(_MARGIN, self._claims.lease / (2 * _BEATS))
        return all(self._until.get(item.id, 0.0) > limit for item in items)

    async def keep(self) -> None:
        """Prolong what lasts; runs until cancelled."""
        while True:
            await asyncio.sleep(self._claims.lease / _BEATS)
            before = time.monotonic()
            soon = before + self._claims.lease * (_BEATS - 1) / _BEATS
            ending = [item for item in self._items.values() if 0 < self._until[item.id] < soon]
            ending += self._again.values()
            if not ending:
                continue
            try:
                ours = await self._claims.renew(ending)
            except (StoreUnavailable, psycopg.Error) as error:
                log.warning("can't renew leases", rows=len(ending), reason=str(error))
                continue
            for item in ending:
                if self._items.get(item.id) is not item:
                    continue  # settled meanwhile, or a later claim of ours, whose time nobody asks
                if item.id in ours and item.id not in self._again:
                    if ours[item.id]:
                        self._until[item.id] = before + self._claims.lease
                else:
                    self._until[item.id] = 0.0
                    log.warning("lease lost", row=item.id, message=item.message_id)
