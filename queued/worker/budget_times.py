"""Times of budgets: a transaction that has one begins at it, or waits for another."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.mail.metadata import BUDGET
from pgmta.model import Item
from pgmta.postgres import faults
from pgmta.postgres.resources import Resources
from pgmta.store.campaigns.reservations import BudgetReservations, Reservation

PATIENCE = 2.0
"""Seconds that a row waits for its time under its lease; then it is handed back."""

_PACE = 0.97  # the margin within which transactions are late
_AHEAD = 0.25  # seconds: a worker that stops loses the times within them
_LATE = 0.01  # seconds: the rest of the margin is for the way to the next hop
_LATE_SLOW = 0.3  # of the distance of two times, for less than one per second
_AGAIN = 1.0  # seconds after the database was away

log = get("budget")


class BudgetTime(NamedTuple):
    """A reserved time by the monotonic clock, and the last moment at which it may be used."""

    at: float
    until: float


FREE = BudgetTime(0.0, float("inf"))
"""The time of mail whose budget is not there: at once."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """The transactions that wait for times of one budget, in order, and the task that asks."""

    futures: deque[asyncio.Future[BudgetTime]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class BudgetTimes:
    """Reserves times by the clock of the database, for the transactions that wait in this process.

    Only the distance to now comes from the database, so the clock of this host does not count. A
    time that is over is lost, also if the process was stopped meanwhile.
    """

    def __init__(self, resources: Resources) -> None:
        self._reservations = BudgetReservations(resources.link("budgets"), _PACE, _AHEAD)
        self._waiting: dict[str, _Waiting] = {}

    async def wait(self, key: str, number: int) -> BudgetTime | None:
        """Wait for `number` times of a budget, until the last one; None if it takes too long."""
        waiting = self._waiting.setdefault(key, _Waiting())
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[BudgetTime]] = [loop.create_future() for _ in range(number)]
        waiting.futures.extend(futures)
        if waiting.task is None:
            waiting.task = asyncio.create_task(self._serve(key, waiting))
        try:
            async with asyncio.timeout(PATIENCE):
                found = [await future for future in futures][-1]
        except TimeoutError:
            return None
        finally:
            for future in futures:
                future.cancel()
        await asyncio.sleep(found.at - time.monotonic())
        return found

    async def _serve(self, key: str, waiting: _Waiting) -> None:
        """Reserve times as long as any transaction waits for them."""
        try:
            while wanted := _open(waiting.futures):
                try:
                    found = await self._reservations.reserve(key, wanted)
                except (StoreUnavailable, psycopg.Error) as error:
                    log.warning("no times", budget=key, reason=faults.words(error))
                    await asyncio.sleep(_AGAIN)
                    continue
                now = time.monotonic()
                if found is None:
                    _give(waiting.futures, [FREE] * len(waiting.futures))
                    continue
                _give(waiting.futures, _times(found, now))
                soon = found.delay + found.number * found.step - _AHEAD / 2
                await asyncio.sleep(min(max(soon, 0.0), PATIENCE) if found.number else
                                    min(max(found.delay - _AHEAD, 0.01), PATIENCE))  # fmt: skip
        finally:
            waiting.task = None
            self._waiting.pop(key, None)


def _open(futures: deque[asyncio.Future[BudgetTime]]) -> int:
    """Forget transactions that have given up; return the number of the others."""
    for _ in range(len(futures)):
        future = futures.popleft()
        if not future.done():
            futures.append(future)
    return len(futures)


def _give(futures: deque[asyncio.Future[BudgetTime]], times: list[BudgetTime]) -> None:
    """Give times to those that wait; one that has given up leaves its time to the next."""
    for each in times:
        while futures and futures[0].done():
            futures.popleft()
        if not futures:
            return  # the rest is lost
        futures.popleft().set_result(each)


def _times(found: Reservation, now: float) -> list[BudgetTime]:
    """Return the times of a reservation that was answered at `now`."""
    late = _LATE if found.step <= 1 else found.step * _LATE_SLOW
    first = now + found.delay
    return [BudgetTime(at := first + n * found.step, at + late) for n in range(found.number)]


def budget_of(items: list[Item]) -> str | None:
    """Return the budget of rows, None if they have none."""
    for item in items:
        if item.metadata and BUDGET in item.metadata:
            try:
                return str(json.loads(item.metadata)["_budget"])
            except (ValueError, KeyError, TypeError):
                return None  # made by hand
    return None
