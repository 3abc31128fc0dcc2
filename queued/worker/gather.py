"""When a group that gathers for a commit is large enough to go."""

from __future__ import annotations

import asyncio


class Gather:
    """Lets a group grow to the size of the one before, for `patience` seconds at most.

    A statement costs several times what a row in it does, so under load it is worth a moment to
    wait for the others; a lone message never waits.
    """

    def __init__(self, patience: float, most: int) -> None:
        self._patience = patience
        self._most = most
        self._wanted = 1
        self._waiter: asyncio.Future[None] | None = None

    def come(self, number: int) -> None:
        """So many wait now."""
        if self._waiter and number >= self._wanted and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, number: int) -> None:
        """Return when the group should go; so many wait now."""
        if number >= self._wanted:
            return
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(self._patience, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def gone(self, number: int) -> None:
        """A group of that size went."""
        self._wanted = min(self._most, number)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
