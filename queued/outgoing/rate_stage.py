"""The stage in which mail with a rate waits for its time, before it comes to its destination.

So it holds no connection meanwhile. Rows of a transaction have the same time, so each gets its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from pgmta.mail.metadata import BUDGET
from pgmta.store.records.reservations import Budget
from queued.config import QueuedConfig
from queued.delivery.transport.begin_time import BeginTime
from queued.delivery.transport.result import NOT_BEGUN, postponed
from queued.outgoing.budget_line import SECONDS, BudgetLine, RatedRow, most_waiting
from queued.outgoing.clock_bounds import ClockBounds
from queued.outgoing.outgoing import Outgoing
from queued.outgoing.stage import (
    LeftOutPeriod,
    OutgoingStage,
    Prepare,
    Prepared,
    StageContext,
)
from queued.routing.route_rate import budgets_of

_UNDER_WAY = 1.0  # seconds of a claim that is under way, or gets its rows here
_KNOWN = 1000  # labels that a claim can leave out, at most


class RateStage(OutgoingStage):
    """Has a line for each budget. It takes rows for two seconds of a rate, at least two.

    The others are handed back, and claims leave them out until half of these are gone. All rows
    here take at most `rates.most` slots, so that some are left for other mail. Beyond it those go
    back whose time is more than two seconds away.
    """

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._lines: dict[Budget, BudgetLine] = {}
        self._rows: dict[RatedRow, None] = {}  # in a line, or with a timer
        self._loads: Counter[Budget] = Counter()  # rows by their first budget
        self._clock = ClockBounds()
        self._draining = False

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return the step; metadata may name a budget at any time."""
        return self.prepare if self.context.reservations else None

    def prepare(self, outgoing: Outgoing) -> Prepared:
        """Return mail without a rate; take the other, and let it go on at its time."""
        if outgoing.rate is None:
            for item in outgoing.items:
                if item.metadata and BUDGET in item.metadata:
                    break
            else:
                return outgoing
        rest = []
        for item in outgoing.items:
            if budgets := budgets_of(outgoing.rate, item):
                self._take(RatedRow(outgoing._replace(items=[item]), budgets))
            else:
                rest.append(item)
        return outgoing._replace(items=rest) if rest else None

    def _take(self, row: RatedRow) -> None:
        budget, left_out = row.budgets[0], self.context.rates.left_out
        if self._draining:
            self._hand_back(row)
        elif budget.label and (period := left_out.get(budget.label)):
            now = time.monotonic()
            if now < period.since + _UNDER_WAY:
                self._hand_back(row)
            else:  # it came with other recipients of its message
                self._postpone(row, min(period.until - now, SECONDS))
        elif budget.label and self._full(budget):
            if budget.label in left_out:
                self._hand_back(row)
            else:  # claims leave out too many labels: the next one would have it again at once
                self._postpone(row, SECONDS)
        else:
            self._add(row)
            self._queue(row)

    # -- which mail claims leave out --

    def _full(self, budget: Budget) -> bool:
        """Return whether a row finds no room, and then leave such mail out of claims."""
        rates = self.context.rates
        if self._loads[budget] >= _most(budget):
            self._leave_out(budget.label, math.inf)
            return True
        now = time.monotonic()
        if rates.load >= rates.most:
            self._make_room(now)
        if rates.load >= rates.most:
            self._leave_out(budget.label, now + SECONDS / 2)
            return True
        return False

    def _make_room(self, now: float) -> None:
        """Hand back the rows whose time is far away, and leave such mail out until it is near."""
        for line in self._lines.values():
            if line.budget.label and line.waiting and line.next_at > now + SECONDS:
                self._leave_out(line.budget.label, line.next_at - SECONDS / 2)
                for row in line.clear():
                    self._remove(row)
                    self._hand_back(row)

    def _leave_out(self, label: str, until: float) -> None:
        rates = self.context.rates
        if len(rates.left_out) < _KNOWN:
            rates.left_out[label] = LeftOutPeriod(time.monotonic(), until)
            if until < math.inf:
                delay = max(0.0, until - time.monotonic())
                asyncio.get_running_loop().call_later(delay, self._claim_again, label)

    def _claim_again(self, label: str) -> None:
        rates = self.context.rates
        if rates.left_out.pop(label, None) is not None and not self._draining:
            rates.wake()

    # -- rows that wait --

    def _add(self, row: RatedRow) -> None:
        self._rows[row] = None
        self._loads[row.budgets[0]] += 1
        self.context.rates.load += 1
        self.context.room -= row.outgoing.room

    def _remove(self, row: RatedRow) -> None:
        budget = row.budgets[0]
        del self._rows[row]
        self.context.rates.load -= 1
        self.context.room += row.outgoing.room
        self._loads[budget] = load = self._loads[budget] - 1
        if not load:
            del self._loads[budget]
        rates = self.context.rates
        period = rates.left_out.get(budget.label)
        room = period and (period.until == math.inf or rates.load <= rates.most // 2)
        if room and load <= _most(budget) // 2:
            self._claim_again(budget.label)

    def _queue(self, row: RatedRow, *, first: bool = False) -> None:
        """Let a row wait for a time of its next budget."""
        budget = row.budgets[row.have]
        line = self._lines.get(budget)
        if line is None:
            assert self.context.reservations  # noqa: S101 - for the type checker
            reservations, clock = self.context.reservations, self._clock
            line = BudgetLine(budget, reservations, clock, self._ready, self._put_off, self._ended)
            self._lines[budget] = line
        line.put(row, first=first)

    def _ready(self, row: RatedRow) -> None:
        """Let a row go on right before its time, or now if its destination has no connection."""
        last = row.have == len(row.budgets)
        early = last and not self.context.connected(row.outgoing.destination)
        self._later(row, 0.0 if early else row.at - row.lead - time.monotonic(), last=last)

    def _later(self, row: RatedRow, delay: float, *, last: bool) -> None:
        go = self._go_on if last else self._next
        row.timer = asyncio.get_running_loop().call_later(max(delay, 0.0), go, row)

    def _next(self, row: RatedRow) -> None:
        row.timer = None
        self._queue(row)

    def _go_on(self, row: RatedRow) -> None:
        row.timer = None
        self._remove(row)
        outgoing = row.outgoing
        if row.until < math.inf:
            begin = BeginTime(row.at, row.until, lambda: self._came_back(row))
            outgoing = outgoing._replace(begin=begin)
        self.context.go_on(self, outgoing)

    def _came_back(self, row: RatedRow) -> None:
        """Take a row that came to a connection long before its time, or too late for it."""
        self.context.room += row.outgoing.room
        if self._draining:
            self._hand_back(row)
            return
        self._add(row)
        delay = row.at - row.lead - time.monotonic()
        if delay > 0:
            self._later(row, delay, last=True)
        else:
            row.lose()
            self._queue(row, first=True)

    def _put_off(self, row: RatedRow, wait: float) -> None:
        """Put a row off whose budget has no time for long."""
        self._remove(row)
        self._postpone(row, wait)

    def _ended(self, line: BudgetLine) -> None:
        """Forget a line without rows."""
        if self._lines.get(line.budget) is line:
            del self._lines[line.budget]

    # -- rows that leave the worker --

    def _hand_back(self, row: RatedRow) -> None:
        self.context.end(row.outgoing.items, NOT_BEGUN, row.outgoing.started)

    def _postpone(self, row: RatedRow, wait: float) -> None:
        until = datetime.now(UTC) + timedelta(seconds=max(wait, 0.1))
        result = postponed(until, f"waits for a time of budget {row.budgets[row.have].key}")
        self.context.end(row.outgoing.items, result, row.outgoing.started)

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


def _most(budget: Budget) -> int:
    """Return how many rows of a budget wait here."""
    return most_waiting(budget.rate or 0.0, budget.burst)
