"""The stage in which mail with a rate waits for its time, before it comes to its destination.

So it holds no connection meanwhile. Rows of a transaction have the same time, so each gets its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from pgmta.model import Item
from pgmta.postgres.database_time import DatabaseTime
from queued.config import QueuedConfig
from queued.delivery.transport.begin_time import LEAD_S, BeginTime
from queued.delivery.transport.result import NOT_BEGUN, postponed
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import (
    LeftOutPeriod,
    OutgoingStage,
    Prepare,
    Prepared,
    StageContext,
)

from .budget_line import WAITING_S, BudgetLine, Late, RatedRow, keys_of, most_waiting
from .recent_times import RecentTimes
from .reservations import Budget, BudgetReservations
from .route_rate import BUDGET, budgets_of

_CLAIM_S = 1.0  # so long a claim is under way, or gets its rows here
_MAX_LABELS = 1000  # that a claim can leave out
_MAX_LINES = 1000  # above this number lines without rows are forgotten at once
_EMPTY_LINE_S = 600.0  # a line without rows is kept so long: it knows how late its mail begins
_MAX_LEAD_S = 0.25  # before its time, to mark a row with `once`
_IN_TIME_SHARE = 0.995  # of the rows have what they need by their time


class RateStage(OutgoingStage):
    """Has a line for each budget, and for each set of budgets that mail has in common.

    It takes rows for two seconds of a rate, at least two. The others are handed back, and claims
    leave them out until half of these are gone. All rows here take at most `timed.most` slots, so
    that some are left for other mail. Beyond it those go back whose time is more than two seconds
    away.
    """

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._lines: dict[tuple[Budget, ...], BudgetLine] = {}
        self._rows: dict[RatedRow, None] = {}  # rows in a line, or with a timer
        self._loads: Counter[Budget] = Counter()  # rows by their first budget
        self._clock = DatabaseTime()
        self._commits = RecentTimes()  # durations of commits that mark rows with `once`
        self._draining = False
        self._forgot_at = -math.inf  # time when lines were last forgotten
        self._guard = context.guard
        link = context.means.link
        self._reservations = BudgetReservations(link("rates")) if link else None
        self._tasks: dict[asyncio.Task[None], RatedRow] = {}  # commits of rows with `once`

    def rows(self) -> Iterable[Item]:
        """Return the rows that wait for a time, or have one."""
        lines = (line for line in self._lines.values() if not line.idle)
        served = {row for line in lines for row in line.waiting} | set(self._tasks.values())
        waiting = (row for row in self._rows if row.timer or row in served)
        return [item for row in waiting for item in row.outgoing.items]

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step; metadata may name a budget at any time."""
        return self.prepare if self._reservations else None

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return mail without a rate; take the other, and let it go on at its time."""
        if not outgoing.routed.limits:
            for item in outgoing.items:
                if item.metadata and BUDGET in item.metadata:
                    break
            else:
                return outgoing
        rest = []
        for item in outgoing.items:
            if budgets := budgets_of(outgoing.routed.limits, item):
                self._take(RatedRow(outgoing._replace(items=[item]), budgets))
            else:
                rest.append(item)
        return outgoing._replace(items=rest) if rest else None

    def _take(self, row: RatedRow) -> None:
        budget, left_out = row.budgets[0], self.context.timed.left_out
        if self._draining:
            self._hand_back(row)
        elif budget.label and (period := left_out.get(budget.label)):
            now = time.monotonic()
            if now < period.since + _CLAIM_S:
                self._hand_back(row)
            else:  # the row came with other recipients of its message
                self._postpone(row, min(period.until - now, WAITING_S))
        elif budget.label and self._full(budget):
            if budget.label in left_out:
                self._hand_back(row)
            else:  # claims leave out too many labels, so the next one would bring the row again
                self._postpone(row, WAITING_S)
        else:
            self._add(row)
            self._queue(row)

    # -- which mail claims leave out --

    def _full(self, budget: Budget) -> bool:
        """Return whether a row finds no room, and then leave such mail out of claims."""
        timed = self.context.timed
        if self._loads[budget] >= _most(budget):
            self._leave_out(budget.label, math.inf)
            return True
        now = time.monotonic()
        if timed.load >= timed.most:
            self._make_room(now)
        if timed.load >= timed.most:
            self._leave_out(budget.label, now + WAITING_S / 2)
            return True
        return False

    def _make_room(self, now: float) -> None:
        """Hand back the rows whose time is far away, and leave such mail out until it is near."""
        for line in self._lines.values():
            if line.label and line.waiting and line.next_at > now + WAITING_S:
                self._leave_out(line.label, line.next_at - WAITING_S / 2)
                for row in line.clear():
                    self._remove(row)
                    self._hand_back(row)

    def _leave_out(self, label: str, until: float) -> None:
        timed = self.context.timed
        if len(timed.left_out) < _MAX_LABELS:
            timed.left_out[label] = LeftOutPeriod(time.monotonic(), until)
            if until < math.inf:
                delay = max(0.0, until - time.monotonic())
                asyncio.get_running_loop().call_later(delay, self._claim_again, label)

    def _claim_again(self, label: str) -> None:
        timed = self.context.timed
        if timed.left_out.pop(label, None) is not None and not self._draining:
            timed.wake()

    # -- rows that wait --

    def _add(self, row: RatedRow) -> None:
        self._rows[row] = None
        self._loads[row.budgets[0]] += 1
        self.context.timed.load += 1
        self.context.free_octets -= row.outgoing.content_octets

    def _remove(self, row: RatedRow) -> None:
        budget = row.budgets[0]
        del self._rows[row]
        self.context.timed.load -= 1
        self.context.free_octets += row.outgoing.content_octets
        self._loads[budget] = load = self._loads[budget] - 1
        if not load:
            del self._loads[budget]
        timed = self.context.timed
        period = timed.left_out.get(budget.label)
        room = period and (period.until == math.inf or timed.load <= timed.most // 2)
        if room and load <= _most(budget) // 2:
            self._claim_again(budget.label)

    def _queue(self, row: RatedRow, *, first: bool = False) -> None:
        """Let a row wait for a time of its budgets."""
        line = self._lines.get(row.budgets)
        if line is None:
            assert self._reservations  # noqa: S101 - for the type checker
            line = BudgetLine(
                row.budgets, self._reservations, self._clock,
                self._ready, self._put_off, self._lead,
            )  # fmt: skip
            self._forget_lines()
            self._lines[row.budgets] = line
        line.put(row, first=first)

    def _forget_lines(self) -> None:
        """Forget lines that have had no rows for long, as those of destinations that are gone."""
        now, many = time.monotonic(), len(self._lines) >= _MAX_LINES
        if not many and now < self._forgot_at + _EMPTY_LINE_S / 10:
            return
        self._forgot_at = now
        for budgets, line in list(self._lines.items()):
            old = many or line.used_at < now - _EMPTY_LINE_S
            if old and line.idle and not self._loads[budgets[0]]:
                del self._lines[budgets]

    def _lead(self, row: RatedRow) -> float:
        """Return the seconds before its time from which on a row needs something."""
        if not row.once:
            return LEAD_S
        return min(LEAD_S + self._commits.quantile(_IN_TIME_SHARE), _MAX_LEAD_S)

    def _ready(self, row: RatedRow) -> None:
        """Let a row go on right before its time, or now if its destination has no connection."""
        now = time.monotonic()
        if row.until < max(now, row.at):
            self._lose(row, Late.DATABASE, now - row.at)
        elif not self.context.dispatcher.connected(row.outgoing.routed.destination):
            self._later(row, now, self._go_on)
        else:
            self._later(row, row.at - self._lead(row), self._near)

    def _later(self, row: RatedRow, due: float, go: Callable[[RatedRow], None]) -> None:
        row.due = max(due, now := time.monotonic())
        row.timer = asyncio.get_running_loop().call_later(row.due - now, go, row)

    def _near(self, row: RatedRow) -> None:
        """Let a row go on whose time is near. One with `once` is marked as begun before.

        That commit holds no connection, however far away PostgreSQL is. But a row must not wait
        long with its mark, because a killed worker leaves it as unknown.
        """
        row.timer = None
        if not row.once or row.until == math.inf:
            self._go_on(row)
        elif self.context.dispatcher.jammed(row.outgoing.routed.destination):
            self._lose(row, Late.NEXT_HOP, time.monotonic() + self._lead(row) - row.at)
        else:
            self._start(row, self._note(row))

    def _start(self, row: RatedRow, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = row
        task.add_done_callback(self._tasks.pop)
        return task

    def _unmark_late(self, row: RatedRow, begin: BeginTime) -> None:
        """Unmark a row that no connection has taken in time: it may wait there for long."""
        if row.begin is begin and begin.arrived is None and not self._draining:
            begin.noted, row.noted = False, None
            row.withdrawal = self._start(row, self._guard.withdraw(row.outgoing.items))

    async def _note(self, row: RatedRow) -> None:
        asked = time.monotonic()
        begun = await self._guard.begin(row.outgoing.items)
        row.noted = time.monotonic()
        self._commits.note(row.noted - asked)
        if row not in self._rows:  # the row was drained meanwhile
            return
        if not begun:
            self._remove(row)
            self._hand_back(row)
        elif row.noted > row.until:
            self._lose(row, Late.DATABASE, row.noted - row.at)
        else:
            self._later(row, row.at - LEAD_S, self._go_on)

    def _go_on(self, row: RatedRow) -> None:
        row.timer = None
        row.went = time.monotonic()
        self._remove(row)
        outgoing = row.outgoing
        if row.until < math.inf:
            noted = not row.once or row.noted is not None
            begun, back = partial(self._begun, row), partial(self._came_back, row)
            row.begin = begin = BeginTime(row.at, row.until, noted, begun, back)
            outgoing = outgoing._replace(begin=begin)
            if row.noted is not None:
                wait = row.until - row.went
                asyncio.get_running_loop().call_later(wait, self._unmark_late, row, begin)
        self.context.go_on(self, outgoing)

    def _begun(self, row: RatedRow) -> None:
        """Note how late a transaction began."""
        late = max(0.0, time.monotonic() - row.at)
        if line := self._lines.get(row.budgets):
            line.use(late)

    def _lose(self, row: RatedRow, why: Late, late: float) -> None:
        """Count the time of a row as lost: it could have begun `late` seconds after it."""
        if line := self._lines.get(row.budgets):
            line.lose(why, late)
        self._again(row)

    def _again(self, row: RatedRow) -> None:
        """Let a row wait for another time, before all others."""
        if row.noted is not None:
            row.withdrawal = self._start(row, self._guard.withdraw(row.outgoing.items))
        row.lose()
        if row.withdrawal:
            self._start(row, self._queue_unmarked(row, row.withdrawal))
        else:
            self._queue(row, first=True)

    async def _queue_unmarked(self, row: RatedRow, withdrawal: asyncio.Task[None]) -> None:
        """Let a row wait again once it is not marked any more."""
        await withdrawal
        row.withdrawal = None
        if row in self._rows:
            self._queue(row, first=True)

    def _came_back(self, row: RatedRow) -> None:
        """Take a row that came to a connection long before its time, or too late for it."""
        self.context.free_octets += row.outgoing.content_octets
        if self._draining:
            self._hand_back(row)
            return
        self._add(row)
        begin, now = row.begin, time.monotonic()
        assert begin  # noqa: S101 - for the type checker
        if begin.used:  # the time was used, but the host closed the connection
            self._again(row)
        elif now > row.until:
            self._lose(row, _late_part(row, now), now - row.at)
        elif begin.noted:
            self._later(row, row.at - LEAD_S, self._go_on)
        else:
            self._later(row, row.at - self._lead(row), self._near)

    def _put_off(self, row: RatedRow, wait: float) -> None:
        """Put a row off whose budget has no time for long."""
        self._remove(row)
        self._postpone(row, wait)

    # -- rows that leave the worker --

    def _hand_back(self, row: RatedRow) -> None:
        self.context.dispatcher.end(row.outgoing.items, NOT_BEGUN, row.outgoing.started)

    def _postpone(self, row: RatedRow, wait: float) -> None:
        result = postponed(max(wait, 0.1), f"waits for a time of budget {keys_of(row.budgets)}")
        self.context.dispatcher.end(row.outgoing.items, result, row.outgoing.started)

    def drain(self) -> list[Outgoing]:
        """Begin nothing more; return the messages that wait for their time."""
        self._draining = True
        for line in list(self._lines.values()):
            line.clear()
            line.end()
        rows = list(self._rows)
        for row in rows:
            if row.timer:
                row.timer.cancel()
            self._remove(row)
        return [row.outgoing for row in rows]

    async def wait(self) -> None:
        """Wait for the commits that are under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)


def _late_part(row: RatedRow, now: float) -> Late:
    """Return what took longest of a row that was too late for its time."""
    arrived = (row.begin and row.begin.arrived) or now
    parts = {
        Late.NEXT_HOP: arrived - max(row.went, row.at - LEAD_S),
        Late.DATABASE: row.noted - row.at if row.noted else 0.0,
        Late.HOST: row.went - row.due + now - max(arrived, row.at),
    }
    return max(parts, key=lambda each: parts[each])


def _most(budget: Budget) -> int:
    """Return how many rows of a budget wait here."""
    return most_waiting(budget.rate or 0.0, budget.burst)
