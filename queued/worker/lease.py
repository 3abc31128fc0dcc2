"""The leases a worker holds: prolonged while deliveries last, watched before every final dot."""

from __future__ import annotations

import asyncio
import time

from queued.errors import StoreUnavailable
from queued.logs import get
from queued.model import Item
from queued.store.claim import Claims

_MARGIN = 1.0  # seconds before the end at which a lease no longer counts as ours
_BEATS = 3  # renewals in the time of a lease

log = get("lease")


class Leases:
    """Which rows are ours, and until when by our own clock."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._items: dict[int, Item] = {}
        self._until: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, items: list[Item], claimed: float) -> None:
        """Note a claim that was asked for at `claimed`, by the monotonic clock."""
        for item in items:
            self._items[item.id] = item
            self._until[item.id] = claimed + self._claims.lease

    def drop(self, item: Item) -> None:
        """Forget a row that is settled."""
        current = self._items.get(item.id)
        if current and current.token == item.token:
            del self._items[item.id]
            del self._until[item.id]

    def valid(self, items: list[Item]) -> bool:
        """Whether all these rows are certainly still ours."""
        limit = time.monotonic() + _MARGIN
        return all(self._until.get(item.id, 0.0) > limit for item in items)

    async def keep(self) -> None:
        """Prolong what lasts; runs until cancelled."""
        while True:
            await asyncio.sleep(self._claims.lease / _BEATS)
            before = time.monotonic()
            soon = before + self._claims.lease * (_BEATS - 1) / _BEATS
            ending = [item for item in self._items.values() if self._until[item.id] < soon]
            if not ending:
                continue
            try:
                ours = await self._claims.renew(ending)
            except StoreUnavailable as error:
                log.warning("can't renew leases", rows=len(ending), reason=str(error))
                continue
            for item in ending:
                if item.id in ours:
                    self.add([item], before)
                elif item.id in self._until:
                    self._until[item.id] = 0.0
                    log.warning("lease lost", row=item.id, message=item.message_id)
