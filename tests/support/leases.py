"""Leases that always hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from pgmta.model import Item
from pgmta.store.queue.lease import RowLeases
from queued.worker.leases import Leases


class Always(Leases):
    """Leases of all rows that exist; none is lost."""

    def __init__(self) -> None:
        super().__init__(RowLeases(cast(Any, None), "w", 60.0))

    def valid(self, items: list[Item]) -> bool:
        return True

    async def begin(self, items: list[Item]) -> bool:
        """Say yes."""
        return True

    def unowned(self, items: Iterable[Item]) -> list[Item]:
        """Return those that no part has."""
        self.items = {item.id: item for item in items}
        return super().unowned(list(self.items.values()))

    async def withdraw(self, items: list[Item]) -> None:
        """Note nothing."""


ALWAYS = Always()
