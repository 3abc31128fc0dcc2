"""The mail of one worker that waits for times of the same budgets, most often of one."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.database_time import DatabaseTime
from queued.delivery.transport.begin_time import BeginTime
from queued.outgoing.outgoing import Outgoing

from .rate import LOST
from .recent_times import RecentTimes
from .reservations import Budget, BudgetReservations, Reservation, Wish

WAITING_S = 2.0
"""So many seconds of a rate have rows that wait in a worker."""

WAY_S = 0.02
"""The part of the lateness of a time that is left to the way to the next hop, which varies."""

# time to open a connection; a process that stops loses what it has reserved
_RESERVED_AHEAD_S = 0.5
_STATEMENT_PAUSE_S = 0.1  # between two statements for a budget
# Of several budgets a worker reserves few times in one statement: what lies between those of the
# slowest is lost to the others, and to other mail that needs them.
_COMMON_PAUSE_S = 0.05
_RETRY_PAUSE_S = 1.0  # after the database was away
_MAX_LATE_S = 0.2  # mail begins after its time by at most this, as budget_times() grants it
_MIN_WINDOW_S = 0.003  # in which mail can begin; in a shorter one times would be lost
_LOSS_PRICE_S = 1.3  # for each lost time a second: the time itself, and statements for the next
_MAX_WAIT_S = 60.0  # mail waits here no longer, unless claims can't leave it out
_MIN_WAITING_ROWS = 2  # of a slow rate, so that no time is lost
_SPREAD_S = 600.0  # in which the rows that were put off come again
_LOG_INTERVAL_S = 30.0  # for lines about lost times
_MIN_LOST_SHARE = 0.05  # of the times, for a line in the log

log = get("budget")


class Late(StrEnum):
    """What was late when a time was lost."""

    DATABASE = "database"
    HOST = "host"
    """The processors of the worker's host are busy."""
    NEXT_HOP = "next hop"


def keys_of(budgets: Sequence[Budget]) -> str:
    """Return the keys of budgets, for a text."""
    return " and ".join(budget.key for budget in budgets)


def most_waiting(rate: float, burst: float = 1.0) -> int:
    """Return how many rows of a budget wait in a worker; `rate` is per second."""
    return max(_MIN_WAITING_ROWS, math.ceil(rate * WAITING_S + burst - 1))


@dataclass(slots=True, eq=False)
class RatedRow:
    """A row that needs a time that its budgets have in common."""

    outgoing: Outgoing
    budgets: tuple[Budget, ...]
    """At least one."""
    at: float = 0.0
    """The time at which it begins, by the monotonic clock."""
    until: float = math.inf
    """The last time at which it may."""
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    due: float = 0.0
    """When it is to go on."""
    went: float = 0.0
    """When it went on."""
    begin: BeginTime | None = field(default=None, repr=False)
    """Its time, once it went on with it."""
    noted: float | None = None
    """When it was marked as begun, if it has `once`."""
    withdrawal: asyncio.Task[None] | None = field(default=None, repr=False)
    """The end of that mark, which is under way: no other mark may begin before."""

    @property
    def once(self) -> bool:
        """Whether a commit comes before its transaction."""
        return self.outgoing.items[0].once

    def lose(self) -> None:
        """Need another time."""
        self.at, self.until, self.begin, self.noted = 0.0, math.inf, None, None


class BudgetLine:
    """Rows in order, and the task that reserves times for them while there are any.

    `ready` takes each row that has got its time; `put_off` a row whose budget has none for long,
    and the seconds. `lead` returns the seconds before its time at which a row goes on.

    Mail may begin a while after its time: for the way to the next hop, for what is not known of the
    database's clock, and for the lateness of this process and of what it waits for. The more of
    it, the farther are the times apart; with less of it more times are lost. So a line wishes what
    costs least after its last transactions.
    """

    def __init__(
        self,
        budgets: tuple[Budget, ...],
        reservations: BudgetReservations,
        clock: DatabaseTime,
        ready: Callable[[RatedRow], None],
        put_off: Callable[[RatedRow, float], None],
        lead: Callable[[RatedRow], float],
    ) -> None:
        self._common = len(budgets) > 1
        self._keys = keys_of(budgets)
        self.budgets = budgets
        """The budgets whose times the rows wait for."""
        self.label = "" if self._common else budgets[0].label
        """The name by which claims leave out its mail, and no other; empty: they can't."""
        self.waiting: deque[RatedRow] = deque()
        """Rows without a time."""
        self.used_at = 0.0
        """When the last row came."""
        self.next_at = 0.0
        """When the budgets have their next time, by the monotonic clock, as far as it is known."""
        self._reservations = reservations
        self._clock = clock
        self._ready = ready
        self._put_off = put_off
        self._lead = lead
        self._task: asyncio.Task[None] | None = None
        self._last = -math.inf  # the last time that was given, which no later one is before
        self._step = 0.0  # seconds between two times, as far as it is known
        self._later = 0.0  # time when the last row that was put off comes again
        self._lateness = RecentTimes()
        self._late = 0.0  # lateness that was granted last
        self._vain = False  # whether too little lateness is granted to use any time
        self._used, self._lost = 0, Counter[Late]()  # times that the database does not know of
        self._period = 0, Counter[Late]()  # used and lost times since the last line in the log
        self._said = -math.inf

    @property
    def idle(self) -> bool:
        """Whether nothing waits for it."""
        return self._task is None

    def put(self, row: RatedRow, *, first: bool = False) -> None:
        """Let a row wait for a time, before all others if it has lost one."""
        if first:
            self.waiting.appendleft(row)
        else:
            self.waiting.append(row)
        self.used_at = time.monotonic()
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

    # -- what became of times --

    def use(self, late: float) -> None:
        """Count a time whose mail began `late` seconds after it."""
        self._lateness.note(late)
        self._used += 1

    def lose(self, why: Late, late: float) -> None:
        """Count a time whose mail could have begun `late` seconds after it, which was too late."""
        self._lateness.note(late)
        self._lost[why] += 1

    def _tell(self, now: float) -> None:
        """Write a line if many times were lost since the last one."""
        used, lost = self._period
        number = lost.total()
        if now < self._said + _LOG_INTERVAL_S or not number:
            return
        if number >= _MIN_LOST_SHARE * (used + number):
            log.warning("times of a rate are lost", budget=self._keys, lost=number,
                        used=used, reason=LOST[_most(lost)],
                        clock_ms=round(1000 * self._clock.uncertainty(now), 1))  # fmt: skip
        self._said, self._period = now, (0, Counter())

    # -- reserving --

    async def _serve(self) -> None:
        try:
            while self.waiting:
                pause = await self._reserve()
                await asyncio.sleep(pause)
        except Exception as error:
            log.error("no times", budget=self._keys, exc_info=error)
            for row in self.clear():
                self._put_off(row, _RETRY_PAUSE_S)
        finally:
            self._task = None

    def _wish(self, now: float) -> Wish:
        clock, row = self._clock, self.waiting[0]
        lead = self._lead(row)
        used, self._used = self._used, 0
        lost, self._lost = self._lost, Counter()
        known = clock.known  # otherwise the answer to this question shows the clock
        unsure = WAY_S + (clock.uncertainty(now) if known else 0.0)
        late = unsure + self._lateness.cheapest(_MAX_LATE_S - unsure, _LOSS_PRICE_S)
        before, kinds = self._period
        self._period = before + used, kinds + lost
        soonest = min(clock.trip_s + lead, _RESERVED_AHEAD_S - _STATEMENT_PAUSE_S)
        near = soonest + _STATEMENT_PAUSE_S + clock.trip_s
        return Wish(
            len(self.waiting) if known and not self._vain else 0,
            soonest, min(near, _RESERVED_AHEAD_S), _RESERVED_AHEAD_S,
            late, used, lost.total(), _most(lost) if lost else None,
        )  # fmt: skip

    async def _reserve(self) -> float:
        """Give times to rows; return the seconds until more can be reserved."""
        asked = time.monotonic()
        known = self._clock.known
        wish = self._wish(asked)
        try:
            found = await self._reservations.reserve(self.budgets, wish)
        except (StoreUnavailable, psycopg.Error) as error:
            log.warning("mail waits", budget=self._keys, reason=faults.one_line(error))
            return _RETRY_PAUSE_S
        if found is None:  # without such a budget there is no limit
            for row in self.clear():
                self._ready(row)
            return _STATEMENT_PAUSE_S
        now = time.monotonic()
        self._clock.see(asked, now, found.present)
        if not known:
            return 0.0
        self.next_at = self._clock.latest(found.next)
        self._step = found.step
        for number in range(found.number):
            if not self.waiting:  # no row is left, so the other times are lost
                break
            moment = found.first + number * found.step
            # otherwise the clock of the database was set forward
            if self._clock.latest(moment) > self._last:
                self._give(self.waiting.popleft(), found, moment)
        if found.number:
            last = found.first + (found.number - 1) * found.step
            self._last = max(self._last, self._clock.earliest(last))
        self._make_room()
        if self._is_vain(found, now):
            return _RETRY_PAUSE_S
        if not wish.number:
            return 0.0
        self._tell(now)
        delay = self.next_at - now
        if not found.number and delay > _MAX_WAIT_S and not self.label:
            for row in self.clear():
                self._put_off(row, delay)
            return _STATEMENT_PAUSE_S  # rows that come next go too, and take no slots of others
        early = wish.soonest + _STATEMENT_PAUSE_S
        if self._common:
            return max(_COMMON_PAUSE_S, min(delay - early, _MAX_WAIT_S))
        early = max(_RESERVED_AHEAD_S / 2, early) if found.number else _RESERVED_AHEAD_S
        return max(_STATEMENT_PAUSE_S, min(delay - early, _MAX_WAIT_S))

    def _is_vain(self, found: Reservation, now: float) -> bool:
        """Return whether all times would be lost: others have them until that changes."""
        unsure = self._clock.uncertainty(now)
        self._vain = found.late < WAY_S + unsure + _MIN_WINDOW_S
        if self._vain:
            self._lost[Late.DATABASE] += 1
            if now >= self._said + _LOG_INTERVAL_S:
                log.warning("mail waits: the database's clock is not known well enough for a rate",
                            budget=self._keys, clock_ms=round(1000 * unsure, 1))  # fmt: skip
                self._said = now
        return self._vain

    def _make_room(self) -> None:
        """Put off the last of many rows that claims can't leave out, so that others get slots."""
        if self.label or not self._step:
            return
        most = most_waiting(1 / self._step)
        now = time.monotonic()
        while len(self.waiting) > most:
            first = now + most * self._step
            self._later = max(self._later, first) + self._step
            if self._later > now + _SPREAD_S:  # each later time has rows already
                self._later = first
            self._put_off(self.waiting.pop(), min(self._later - now, _SPREAD_S))

    def _give(self, row: RatedRow, found: Reservation, moment: float) -> None:
        """Give a row its time. That of a burst may be over: it can be used later too."""
        row.at = self._clock.latest(max(moment, found.present))
        row.until = self._clock.earliest(moment) + found.late - WAY_S
        self._ready(row)


def _most(lost: Counter[Late]) -> Late:
    """Return what was late most often."""
    return max(lost, key=lambda each: lost[each])
