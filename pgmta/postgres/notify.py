"""LISTEN that survives a lost connection, and a NOTIFY that can't be sent too often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link, connect

CHANNEL: Final = "postern_queue"
NOTIFY: Final = f"NOTIFY {CHANNEL}"
"""Tells the workers that there may be mail; functions of the database do the same."""
_END = 1.0  # seconds that a notification under way may take when we stop
_RECONNECT = 0.5  # seconds
_INTERVAL = 0.02  # seconds between two NOTIFYs of one process


async def listen(
    uri: str, wake: Callable[[], None], pause: Callable[[], float] = lambda: 0.0
) -> None:
    """Call `wake` for every notification and after every (re)connect; runs until cancelled.

    A notification that comes while it is others' turn is the last one for `pause` seconds, so that
    PostgreSQL need not wake everybody; then `wake` is called once more. Notifications are hints and
    may be lost: polling is the truth.
    """
    while True:
        try:
            connection = await connect(uri, "listen")
            try:
                while True:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    wake()
                    seconds = 0.0
                    while not seconds:
                        async for _ in connection.notifies(stop_after=1):
                            wake()
                        seconds = pause()
                    await connection.execute(f"UNLISTEN {CHANNEL}")
                    await asyncio.sleep(seconds)
            finally:
                await connection.close()
        except psycopg.Error:
            await asyncio.sleep(_RECONNECT)


class Notifier:
    """Tells the workers that mail has come, after its commit and outside of its transaction."""

    def __init__(self, uri: str) -> None:
        self._link = Link(uri, "notify")
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._last = 0.0

    def notify(self) -> None:
        """Send a NOTIFY soon: at once after a quiet time, else once for many calls."""
        if self._task:
            self._again = True
        else:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                self._again = False
                await asyncio.sleep(max(0.0, self._last + _INTERVAL - time.monotonic()))
                self._last = time.monotonic()
                try:
                    await self._link.run(NOTIFY)
                except (StoreUnavailable, psycopg.Error):
                    return  # the workers poll
                if not self._again:
                    return
        finally:
            self._task = None

    async def close(self) -> None:
        """End the connection."""
        if task := self._task:
            _, late = await asyncio.wait([task], timeout=_END)
            if late:  # PostgreSQL hangs; the workers poll
                task.cancel()
                await asyncio.wait([task])
        await self._link.close()
