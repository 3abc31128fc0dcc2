"""The number of connections that are opened side by side to one destination."""

from __future__ import annotations

import asyncio
from typing import Protocol

_PAUSE = 5.0  # seconds without a further connection after a refused one: others end meanwhile
_LONGEST = 60.0  # seconds of a pause after many: by then a host's limit may have been lifted
_AT_ONCE = 4  # connections begun side by side, so that a host's limit refuses at most these


class Growing(Protocol):
    """Has connections, and opens further ones."""

    def grow(self) -> None:
        """Open as many connections as the waiting mail has use for."""


class ConnectionPacing:
    """Pauses after a host has refused a connection; `queue` grows when the pause ends.

    Each pause is twice as long as the one before, until a connection succeeds.
    """

    def __init__(self, queue: Growing) -> None:
        self.pause = 0.0
        """Seconds of the last pause; 0.0 if a connection succeeded since."""
        self._queue = queue
        self._timer: asyncio.TimerHandle | None = None

    def at_once(self, connections: int, admitted: int) -> int:
        """Return how many connections may be under way at a time.

        `connections` is the number of all, `admitted` of those that the host has greeted.
        """
        if not connections:
            return 1 if self.pause else _AT_ONCE
        if self._timer:
            return 0
        return 1 if self.pause else max(_AT_ONCE, admitted // 2)

    def succeeded(self) -> None:
        """Note that the host has admitted a connection; one begun before a pause does not count."""
        if not self._timer:
            self.pause = 0.0

    def refused(self) -> None:
        """Note that the host has refused a connection while it admits others."""
        if not self._timer:
            self.pause = min(max(_PAUSE, 2 * self.pause), _LONGEST)
            self._timer = asyncio.get_running_loop().call_later(self.pause, self._over)

    def _over(self) -> None:
        self._timer = None
        self._queue.grow()

    def end(self) -> None:
        """End a pause; the queue does not grow for it."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
