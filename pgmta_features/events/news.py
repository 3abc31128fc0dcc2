"""Readers of events wait here for new ones: one connection listens for all of a process."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import cache

import psycopg

from pgmta.postgres.resources import Resources
from pgmta.service import first, start_part

_RECONNECT_PAUSE_S = 0.5
_UNUSED_S = 60.0  # without a reader, after which the connection is closed
_READS_PER_S = 500.0  # of the log of events, by all readers of a process together


@dataclass(slots=True)
class Mark:
    """A moment, and what is set by the next news behind it."""

    came: asyncio.Event
    at: float = field(default_factory=time.monotonic)


class EventNews:
    """Tells readers of one process that events got their numbers. A notification may be lost.

    Take a `mark`, read, and then wait with it: what came during the read ends the wait at once,
    unless many wait: their reads are bounded together.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._readers = 0
        self._used_at = 0.0

    def mark(self) -> Mark:
        """Return the mark of now. The first call begins to listen."""
        self._used_at = time.monotonic()
        self._begin()
        return Mark(self._came)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = start_part("event news", self._listen)

    async def wait(self, mark: Mark, seconds: float, *others: asyncio.Event) -> bool:
        """Wait for news since a mark, or for one of the others, for so many seconds at most.

        Returns whether any of them came.
        """
        self._readers += 1
        # it may have ended since the mark; its first news are of what came before
        self._begin()
        try:
            found = await first(mark.came, *others, timeout=seconds)
            if mark.came.is_set():
                await asyncio.sleep(mark.at + self._readers / _READS_PER_S - time.monotonic())
            return found
        finally:
            self._readers -= 1

    def _tell(self) -> None:
        self._came.set()
        self._came = asyncio.Event()

    async def _listen(self) -> None:
        while self._readers or time.monotonic() < self._used_at + _UNUSED_S:
            with suppress(psycopg.Error):
                connection = await self._resources.connect("event news")
                try:
                    await connection.execute("LISTEN pgmta_events")
                    self._tell()  # what came before
                    while self._readers or time.monotonic() < self._used_at + _UNUSED_S:
                        notes = connection.notifies(timeout=_UNUSED_S / 4, stop_after=1)
                        async with aclosing(notes):
                            async for _ in notes:
                                self._tell()
                finally:
                    await connection.close()
            await asyncio.sleep(_RECONNECT_PAUSE_S)


@cache
def event_news(resources: Resources) -> EventNews:
    """Return the news of a process: all its readers share one connection."""
    return EventNews(resources)
