"""How many connections a destination may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_FIRST_PAUSE_S = 5.0  # without a further connection after a refused one: others end meanwhile
_MAX_PAUSE_S = 300.0  # by then the limit of a host may have been lifted
_MAX_AT_ONCE = 4  # connections begun side by side, so the limit of a host refuses at most these


class ConnectionPacing:
    """Begins with `start` connections: mail that the host takes earns one more, as in TCP.

    A refused connection sets the limit to those that the host has admitted, and begins a pause.
    Each pause is twice as long as the one before, until a connection succeeds. `grow` is called
    when the pause ends.
    """

    def __init__(self, grow: Callable[[], None], start: int) -> None:
        self.limit = start
        """Connections that the destination may have."""
        self.pause = 0.0
        """Seconds of the last pause; 0.0 if a connection succeeded since."""
        self._grow = grow
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pause_left(self) -> float:
        """The seconds until the end of a pause; 0.0 without one."""
        if self._timer is None:
            return 0.0
        return max(0.0, self._timer.when() - asyncio.get_running_loop().time())

    def at_once(self, connections: int, admitted: int) -> int:
        """Return how many connections may be under way at a time.

        `connections` is the number of all, `admitted` of those that the host has greeted.
        """
        if not connections:
            return 1 if self.pause else _MAX_AT_ONCE
        if self._timer:
            return 0
        return 1 if self.pause else max(_MAX_AT_ONCE, admitted // 2)

    def took_mail(self) -> None:
        """Allow one more connection, because the host goes on taking mail."""
        self.limit += 1
        self._grow()

    def succeeded(self) -> None:
        """Note that the host has admitted a connection; one begun before a pause does not count."""
        if not self._timer:
            self.pause = 0.0

    def refused(self, admitted: int) -> None:
        """Note that the host has refused a connection while it admits others."""
        if not self._timer:
            self.limit = max(1, admitted)
            self.pause = min(max(_FIRST_PAUSE_S, 2 * self.pause), _MAX_PAUSE_S)
            self._timer = asyncio.get_running_loop().call_later(self.pause, self._over)

    def _over(self) -> None:
        self._timer = None
        self.limit += 1  # one connection finds out whether the host admits more
        self._grow()

    def end_pause(self) -> None:
        """End a pause; `grow` is not called for it."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
