"""Watches for rows that programs commit by SQL without a NOTIFY."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

import psycopg

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.question import Question
from pgmta.postgres.resources import Resources
from pgmta.store.queue.arrivals import LOOK_QUESTION, Arrivals
from pgmta.store.schema import Schema
from queued.worker.claim_loop import Claimer

_QUIET_INTERVALS = 50  # a quiet time is so many intervals long
_MAX_INTERVALS = 8  # of the longest pause: queued and its backend then take 0.2 % of a core
_NEWS_S = 60.0  # for which open transactions keep the interval short after news
_NOTIFIED_S = 0.02  # in which a notification leads to a claim
_RECONNECT_PAUSE_S = 0.5
_REFUSED_PAUSE_S = 10.0  # before a question that PostgreSQL refused is asked again
_OTHER_SCHEMA_PAUSE_S = 1.0
_TIMER_RESOLUTION_S = 0.001  # timers have whole milliseconds

log = get("queued")


class RowWatch:
    """Looks at the sequence of row ids while a loop waits in its turn, and wakes it.

    One watch serves all loops of a process. While rows flow a loop waits only for moments, and the
    watch asks nothing.
    """

    def __init__(
        self, resources: Resources, interval: float, loops: Sequence[Claimer], schema: Schema
    ) -> None:
        self._resources = resources
        self._interval = interval
        self._loops = loops
        self._schema = schema
        self.arrivals = Arrivals()
        """The rows that no loop has claimed."""
        self._row: tuple[bytes, ...] = ()
        self._looked = self._news = time.monotonic()
        self._told = 0.0  # time of the last notification
        self._again = False  # whether the last look came too early

    def notified(self) -> float:
        """Take a notification of mail, whose rows are no news; return that more are welcome."""
        self._told = time.monotonic()
        return math.inf

    async def run(self) -> None:
        """Watch until cancelled."""
        refused = ""
        while True:
            try:
                connection = await self._resources.connect("watch")
                try:
                    await Question(connection, self._pause, self._answered).run(LOOK_QUESTION)
                finally:
                    await connection.close()
            except psycopg.Error as error:
                if faults.outage(error):
                    await asyncio.sleep(_RECONNECT_PAUSE_S)
                    continue
                if refused != (refused := faults.one_line(error)):
                    log.warning("new rows are not watched, workers poll", reason=refused)
                await asyncio.sleep(_REFUSED_PAUSE_S)

    def _pause(self) -> float:
        """Return the seconds until the next look, 0.0 for now."""
        if self._schema.problem:
            return _OTHER_SCHEMA_PAUSE_S
        if turn := min(loop.schedule.pause for loop in self._loops):
            return turn
        now = time.monotonic()
        interval = self._interval
        if not self._again and (now > self._news + _NEWS_S or not self.arrivals.waiting):
            interval = min(
                max(interval, (now - self._news) / _QUIET_INTERVALS), interval * _MAX_INTERVALS
            )
        since = min(loop.waits_since for loop in self._loops)
        due = max(self._looked, since) + interval - now
        return 0.0 if due <= _TIMER_RESOLUTION_S else min(due, interval)

    def _answered(self, row: tuple[bytes, ...]) -> None:
        self._looked = time.monotonic()
        if row == self._row:
            return
        self._again = self._looked < self._told + _NOTIFIED_S
        if self._again:  # a claim is about to take most of these rows
            return
        self._row = row
        if self.arrivals.see(int(row[0]), row[1].decode()):
            self._news = self._looked
            for loop in self._loops:
                if not loop.schedule.pause:
                    loop.wake()
