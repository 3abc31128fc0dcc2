"""LISTEN that survives a lost connection, and NOTIFY at a limited rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.postgres.resources import Resources

CHANNEL: Final = "pgmta_queue"
NOTIFY: Final = f"NOTIFY {CHANNEL}"
"""Wakes the workers; functions of the database execute the same."""
_END = 1.0  # seconds that a notification under way may take when its process stops
_RECONNECT = 0.5  # seconds
_INTERVAL = 0.02  # seconds between two NOTIFYs of one process


async def listen(resources: Resources, wakes: Sequence[Callable[[], float]]) -> None:
    """Call `wakes` at every notification and after every (re)connect; runs until cancelled.

    Each wakes a worker, and returns the seconds in which it needs no further notifications, because
    others have the turn. Listening stops while that holds for all of them, and they are called once
    more afterwards. PostgreSQL then wakes one worker per message and not all. Notifications are
    hints and may be lost, so workers also poll.
    """
    while True:
        try:
            connection = await resources.connect("listen")
            try:
                while True:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    for wake in wakes:
                        wake()
                    seconds = 0.0
                    while not seconds:
                        async for _ in connection.notifies(stop_after=1):
                            seconds = min([wake() for wake in wakes], default=0.0)
                    await connection.execute(f"UNLISTEN {CHANNEL}")
                    await asyncio.sleep(seconds)
            finally:
                await connection.close()
        except psycopg.Error:
            await asyncio.sleep(_RECONNECT)


class Notifier:
    """Wakes the workers after mail was committed, by a statement outside of that transaction."""

    def __init__(self, resources: Resources) -> None:
        self._link = resources.link("notify")
        self._task: asyncio.Task[None] | None = None
        self._quiet = asyncio.Event()  # nothing is due, and none is being sent
        self._quiet.set()
        self.due = asyncio.Event()
        """Set it to have a NOTIFY sent: at once after a quiet time, else one for many."""

    def start(self) -> None:
        """Begin to wait for `due`."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        last = -_INTERVAL
        while True:
            await self.due.wait()
            self._quiet.clear()
            await asyncio.sleep(max(0.0, last + _INTERVAL - time.monotonic()))
            self.due.clear()
            last = time.monotonic()
            with suppress(StoreUnavailable, psycopg.Error):  # the workers poll
                await self._link.run(NOTIFY)
            if not self.due.is_set():
                self._quiet.set()

    async def close(self) -> None:
        """Send a NOTIFY that is due, if PostgreSQL answers in time."""
        if task := self._task:
            await asyncio.sleep(0)  # the task may have to see that one is due
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), _END)
            task.cancel()
            await asyncio.wait([task])
