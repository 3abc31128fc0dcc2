"""Wakes a worker at once, or when it is its business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queued.worker.rota import Rota


class Alarm:
    """Calls `wake` for whatever was told by `ring`: now, or after the pause that the rota says.

    What is told while a pause lasts may have come too late for the look at its end, and has a pause
    of its own then.
    """

    def __init__(self, rota: Rota, wake: Callable[[], None]) -> None:
        self._rota = rota
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._again = False

    def ring(self) -> None:
        """There may be mail."""
        pause = self._rota.pause
        if not pause:
            self._wake()
        elif self._timer:
            self._again = True
        else:
            self._timer = asyncio.get_running_loop().call_later(pause, self._over)

    def _over(self) -> None:
        self._timer = None
        self._wake()
        if self._again:
            self._again = False
            self.ring()
