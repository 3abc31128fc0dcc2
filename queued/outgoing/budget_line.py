"""The mail of one worker that waits for times of one budget."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.records.reservations import Budget, BudgetReservations, Reservation
from queued.delivery.transport.begin_time import LEAD, LONGEST_LEAD
from queued.outgoing.clock_bounds import ClockBounds
from queued.outgoing.outgoing import Outgoing

SECONDS = 2.0
"""Seconds of a rate whose rows wait in a worker."""

PACE = 0.97
"""The share of a rate that is used: with `_LATE` no window of a second has more than the rate."""

_AHEAD = 0.5  # seconds: time to open a connection; a process that stops loses them
_PAUSE = 0.1  # seconds between two statements for a budget
_AGAIN = 1.0  # seconds after the database was away
_LATE = 0.01  # seconds after its time at which a transaction may begin: the way out takes more
_LATE_SLOW = 0.3, 1.0  # the same for less than one per second: of their distance, and seconds
_WAITING = 4  # connections of a process that wait for their time, at most
_LONGEST = 60.0  # seconds that mail waits here, if claims can't leave it out
_SOME = 2  # rows of a slow rate that wait nevertheless, so that no time is lost
_SPREAD = 600.0  # seconds within which the others come again

log = get("budget")


def most_waiting(rate: float, burst: float = 1.0) -> int:
    """Return how many rows of a budget wait in a worker; `rate` is per second."""
    return max(_SOME, math.ceil(rate * SECONDS + burst - 1))


def lateness(step: float) -> float:
    """Return the seconds by which a transaction may be late, with `step` between two times.

    With less than one per second no window of a minute has more than the rate.
    """
    share, most = _LATE_SLOW
    return _LATE if step * PACE <= 1.000001 else min(share * step, most)


def lead(step: float, *, once: bool) -> float:
    """Return the seconds before the time of a row at which it needs its connection."""
    return max(LEAD, min(LONGEST_LEAD, _WAITING * step)) if once else LEAD


@dataclass(slots=True, eq=False)
class RatedRow:
    """A row that needs a time of each of its budgets, and has those of the first `have`."""

    outgoing: Outgoing
    budgets: list[Budget]
    """At least one."""
    have: int = 0
    at: float = 0.0
    """The time at which it begins, by the monotonic clock."""
    until: float = math.inf
    """The last time at which it may."""
    lead: float = LEAD
    """Seconds before its time at which it goes on."""
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def lose(self) -> None:
        """Need another time of each budget."""
        self.have, self.at, self.until = 0, 0.0, math.inf


class BudgetLine:
    """Rows in order, and the task that reserves times for them while there are any.

    `ready` takes each row that has got its time; `put_off` a row whose budget has none for long,
    and the seconds; `ended` the line itself when no row is left.
    """

    def __init__(
        self,
        budget: Budget,
        reservations: BudgetReservations,
        clock: ClockBounds,
        ready: Callable[[RatedRow], None],
        put_off: Callable[[RatedRow, float], None],
        ended: Callable[[BudgetLine], None],
    ) -> None:
        self.budget = budget
        """The budget whose times the rows wait for."""
        self.waiting: deque[RatedRow] = deque()
        """Rows without a time."""
        self.next_at = 0.0
        """When the budget has its next time, by the monotonic clock, as far as it is known."""
        self._reservations = reservations
        self._clock = clock
        self._ready = ready
        self._put_off = put_off
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._step = 0.0  # seconds between two times, as far as it is known
        self._later = 0.0  # when the last row comes again that was put off

    def put(self, row: RatedRow, *, first: bool = False) -> None:
        """Let a row wait for a time, before all others if it has lost one."""
        if first:
            self.waiting.appendleft(row)
        else:
            self.waiting.append(row)
        self._make_room()
        if self._task is None:
            self._task = asyncio.create_task(self._serve())

    def clear(self) -> list[RatedRow]:
        """Remove and return the rows that wait."""
        rows = list(self.waiting)
        self.waiting.clear()
        return rows

    def end(self) -> None:
        """Reserve nothing more."""
        if self._task:
            self._task.cancel()

    async def _serve(self) -> None:
        try:
            while self.waiting:
                pause = await self._reserve()
                await asyncio.sleep(pause)
        except Exception as error:
            log.error("no times", budget=self.budget.key, exc_info=error)
            for row in self.clear():
                self._put_off(row, _AGAIN)
        finally:
            self._task = None
            self._ended(self)

    async def _reserve(self) -> float:
        """Give times to rows; return the seconds until more can be reserved."""
        asked = time.monotonic()
        try:
            found = await self._reservations.reserve(self.budget, len(self.waiting), _AHEAD)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("mail waits", budget=self.budget.key, reason=faults.words(error))
            return _AGAIN
        if found is None:  # no such budget, no limit
            for row in self.clear():
                row.have += 1
                self._ready(row)
            return _PAUSE
        now = time.monotonic()
        self._clock.see(asked, now, found.present)
        self.next_at = self._clock.latest(found.first + found.number * found.step)
        for number in range(min(found.number, len(self.waiting))):  # others are lost
            row = self.waiting.popleft()
            self._give(row, found, number)
        self._step = found.step
        self._make_room()
        delay = self.next_at - now
        if not found.number and delay > _LONGEST and not self.budget.label:
            for row in self.clear():
                self._put_off(row, delay)
        return max(_PAUSE, min(delay - (_AHEAD if not found.number else _AHEAD / 2), _LONGEST))

    def _make_room(self) -> None:
        """Put off the last of many rows that claims can't leave out, so that others get slots."""
        if self.budget.label or not self._step:
            return
        most = most_waiting(1 / self._step)
        now = time.monotonic()
        while len(self.waiting) > most:
            first = now + most * self._step
            self._later = max(self._later, first) + self._step
            if self._later > now + _SPREAD:  # each time has rows, however many there are
                self._later = first
            self._put_off(self.waiting.pop(), min(self._later - now, _SPREAD))

    def _give(self, row: RatedRow, found: Reservation, number: int) -> None:
        """Give a row its time. That of a burst may be over: it can be used later too."""
        moment = found.first + number * found.step
        end = max(moment + (self.budget.burst - 1) * found.step, found.present)
        row.lead = lead(found.step, once=row.outgoing.items[0].once)
        row.at = max(row.at, self._clock.latest(max(moment, found.present)))
        row.until = min(row.until, self._clock.earliest(end) + lateness(found.step))
        row.have += 1
        self._ready(row)
