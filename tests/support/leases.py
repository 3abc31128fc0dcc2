"""Leases that always hold."""

from __future__ import annotations

from pgmta.model import Item


class Always:
    """A LeaseGuard for which every lease holds."""

    def valid(self, items: list[Item]) -> bool:
        """Say yes."""
        return True

    async def begin(self, items: list[Item]) -> bool:
        """Say yes."""
        return self.valid(items)

    async def withdraw(self, items: list[Item]) -> None:
        """Note nothing."""


ALWAYS = Always()
