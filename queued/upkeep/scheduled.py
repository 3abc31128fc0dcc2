"""Scheduled rows: shortly before their time they get among those that claims look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pgmta.store.admin.upkeep import SCHEDULED
from pgmta.store.queue.scheduled import ScheduledRows
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

_ROWS_PER_COMMIT = 2000  # takes about 25 ms


class ScheduleDuty:
    """Moves all rows that are near their time, and then calls `wake`: the workers look ahead.

    A worker's timer wakes it at the time itself. The duty comes round several times in the 2
    seconds before (the function schedule_ahead).
    """

    def __init__(self, rows: ScheduledRows, wake: Callable[[], Awaitable[None]]) -> None:
        self._rows = rows
        self._wake = wake

    async def queue_due(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        moved = more = await self._rows.queue_due(_ROWS_PER_COMMIT)
        while more == _ROWS_PER_COMMIT:
            more = await self._rows.queue_due(_ROWS_PER_COMMIT)
        if moved:
            await self._wake()


def _make(process: QueuedProcess) -> Work:
    return ScheduleDuty(ScheduledRows(process.link), process.registry.wake).queue_due


DUTY = Duty("scheduled", 0.5, _make, in_turn=True, look=SCHEDULED)
