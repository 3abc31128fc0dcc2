"""The sequencer: it numbers events soon after their commit, so that readers have an order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from pgmta.metrics.series import SECONDS, Histogram, MoreFigures, Series, Values
from pgmta.postgres.link_connection import LinkConnection
from pgmta.service import rest_after
from pgmta.store.admin.upkeep import Look
from pgmta.store.queries import feature_queries
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import repeat

_PAUSE_S = 0.1  # between rounds while there are events: one and its readers take 2 ms of CPU
_IDLE_PAUSE_S = 0.25  # between looks for the first ones after a while
_BUSY_S = 1.0  # after events, for which more are expected soon
_LOOK_INTERVAL_S = 1.0  # for a first subscription
_MAX_COMMITS = 1000  # of a round
_MIN_LATE_INTERVAL_S = 1.0  # between looks for what transactions wrote that were open for long

_SQL = feature_queries("events")

SUBSCRIBED = Look(_SQL["subscribed"])
"""Whether somebody subscribes to events."""
UNNUMBERED = Look(_SQL["unnumbered"])
"""Whether events wait for their number."""

_PREFIX = "pgmta_queued_"
SERIES = (
    Series(_PREFIX + "events_total", "counter", "Events that this process has numbered."),
    Series(_PREFIX + "event_seconds", "histogram",
           "From an event to its number: the longest of each round.", (), SECONDS),
    Series(_PREFIX + "events_behind_seconds", "gauge",
           "For how long this process has not seen all events numbered; 0: it has."),
)  # fmt: skip
"""What the sequencer of a process has done."""


class Sequencer:
    """Numbers events for one process while somebody subscribes, or events wait.

    Of several processes the one whose turn it is does it, and the others try less often. Any number
    may try at a time: the database lets one do it.
    """

    def __init__(self, process: QueuedProcess) -> None:
        self._process = process
        self._events = 0
        self._seconds = Histogram(SECONDS)
        self._late_at = 0.0  # when the next round looks for what was open for long
        self._behind_since: float | None = None
        process.more_figures.append(MoreFigures(SERIES, self._values))

    def _values(self) -> Values:
        return {
            _PREFIX + "events_total": {(): float(self._events)},
            _PREFIX + "event_seconds": {(): self._seconds.value},
            _PREFIX + "events_behind_seconds": {
                (): time.monotonic() - self._behind_since if self._behind_since else 0.0
            },
        }

    async def number(self) -> None:
        """Number events until there are none, and nobody subscribes. Raises psycopg.Error."""
        self._process.schema.require()
        if not await self._wanted():
            self._behind_since = None
            return
        self._behind_since = self._behind_since or time.monotonic()
        connection = await self._process.resources.connect("events")
        try:
            await self._work(connection)
        finally:
            await connection.close()

    async def _wanted(self) -> bool:
        look = self._process.tasks_due.may
        return await look(SUBSCRIBED) or await look(UNNUMBERED)

    async def _work(self, connection: LinkConnection) -> None:
        busy_until = 0.0
        while True:
            self._process.schema.require()
            commits = await self._round(connection)
            now = time.monotonic()
            if commits:
                busy_until = now + _BUSY_S
            elif now > busy_until and not await self._wanted():
                self._behind_since = None
                return
            if commits is None or commits == _MAX_COMMITS:
                self._behind_since = self._behind_since or now
            else:
                self._behind_since = None
            if commits != _MAX_COMMITS:
                pause = _PAUSE_S if now < busy_until else _IDLE_PAUSE_S
                # the one whose turn is over slows down, and goes on until the next one has begun
                await asyncio.sleep(self._process.due_in(pause))

    async def _round(self, connection: LinkConnection) -> int | None:
        """Number what there is; return the number of commits, None: another process does it."""
        began = time.monotonic()
        late = began >= self._late_at
        cursor = await connection.execute(
            _SQL["number"], {"most": _MAX_COMMITS, "late": late}, prepare=True
        )
        ((commits, events, seconds),) = await cursor.fetchall()
        if late:
            now = time.monotonic()
            self._late_at = now + max(_MIN_LATE_INTERVAL_S, rest_after(now - began))
        if commits:
            self._events += events
            self._seconds.observe(seconds)
        return None if commits is None else int(commits)


def number_events(process: QueuedProcess) -> Coroutine[None, None, None]:
    """Number events until cancelled."""
    return repeat("events", Sequencer(process).number, lambda: _LOOK_INTERVAL_S)
