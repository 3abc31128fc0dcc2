"""The memory that the content of all sessions of a process may take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

_AGAIN = 0.05  # seconds until the next look, as long as too much is held
_ENOUGH = 0.75  # share of the budget down to which the sessions are relieved


class Holder(Protocol):
    """A session, as far as its memory is concerned."""

    held: int

    def relieve(self) -> None:
        """Read no more from the client until what is held has been written ahead."""


class Memory:
    """Octets that the sessions hold: content under way, and what was read ahead of it.

    Over the budget, the sessions that hold most are not read from, until their content stands in
    the database.
    """

    def __init__(self, budget: int, holders: Iterable[Holder]) -> None:
        self._budget = budget
        self._holders = holders
        self._look: asyncio.Handle | None = None
        self.used = 0

    def change(self, octets: int) -> None:
        """A session holds so many octets more, or less."""
        self.used += octets
        if self.used > self._budget and not self._look:
            self._look = asyncio.get_running_loop().call_soon(self._relieve)

    def _relieve(self) -> None:
        self._look = None
        excess = self.used - _ENOUGH * self._budget
        for holder in sorted(self._holders, key=lambda holder: holder.held, reverse=True):
            if excess <= 0:
                break
            excess -= holder.held
            holder.relieve()
        if self.used > self._budget:
            self._look = asyncio.get_running_loop().call_later(_AGAIN, self._relieve)
