"""The short wait in which more outcomes join one commit."""

from __future__ import annotations

import asyncio


class BatchWindow:
    """Lets a batch grow to the size of the one before, for at most `patience` seconds.

    A statement costs several times as much as a row in it. Under load it is thus worth a moment to
    wait for further rows. A single message never waits.
    """

    def __init__(self, patience: float, most: int) -> None:
        self._patience = patience
        self._most = most
        self.wanted = 1
        """Rows with which a batch goes at once."""
        self.waiter: asyncio.Future[None] | None = None
        """Set while a batch grows: then `added` has to be called."""

    def added(self, number: int) -> None:
        """Note that `number` rows wait now."""
        if self.waiter and number >= self.wanted and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, number: int) -> None:
        """Return when the batch should go; `number` rows wait now."""
        if number >= self.wanted:
            return
        loop = asyncio.get_running_loop()
        self.waiter = waiter = loop.create_future()
        timer = loop.call_later(self._patience, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self.waiter = None

    def sent(self, number: int) -> None:
        """Note that a batch of that size was sent."""
        self.wanted = min(self._most, number)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
