"""Suspensions: due mail that meets one is put off in batches, and comes back after its end."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import psycopg

from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres import faults
from pgmta.store.queue.guard import about_a_row
from pgmta.store.records.suspensions import (
    SUSPENDING,
    SuspensionTable,
    SuspensionTask,
    SuspensionWork,
)
from queued.config import QueuedConfig
from queued.delivery.transport.suspended_mail import leads_to
from queued.process.queued_process import QueuedProcess
from queued.routing.retry_until import look_again
from queued.routing.routes import Routes
from queued.upkeep.duty import Duty, Work

_EVERY = 2.0  # seconds; workers put off what they meet meanwhile
_KNOWN = 0.6  # seconds until each process knows that a suspension has ended
_PAGE = 50_000  # ids that one statement finds
_PUT_OFF = 1000  # rows that one commit puts off
_FREED = 5000  # rows that one commit gives back

log = get("suspensions")


class RowTimes:
    """Knows by the routes when a suspended row needs something, and where its mail goes."""

    def __init__(self, process: QueuedProcess) -> None:
        self._process = process
        self._config: QueuedConfig | None = None

    def _read(self) -> QueuedConfig:
        config = self._process.config
        if config is not self._config:
            self._routes = Routes(config.routes, config.routing)
            self._config = config
        return config

    def find_times(
        self, items: list[Item], next_hop: str | None
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Return the seconds for which each row is put off, and the notices that are due.

        With a `next_hop` other rows are left out. Rows whose age is over stay due: a worker ends
        them.
        """
        config = self._read()
        now = datetime.now(UTC)
        notices = config.bounces.delay
        waits: dict[int, float] = {}
        overdue: dict[int, float] = {}
        for item in items:
            if next_hop and not leads_to(self._routes.find(item).destination, next_hop):
                continue
            retry = self._routes.retry(item) or config.retry
            wait = look_again(item, retry, notices, now)
            if wait is None:
                continue
            waits[item.id] = wait
            age = (now - item.ts).total_seconds()
            if notices and item.on_failed == "bounce" and item.sender and age >= notices[0]:
                overdue[item.id] = max(each for each in notices if each <= age)
        return waits, overdue


class SuspensionDuty:
    """Gives rows back whose suspension has ended, and puts due rows off, a batch in each commit.

    Workers put off the rows that they meet first. A process that dies leaves the task open, and the
    next one does the rest.
    """

    def __init__(self, table: SuspensionTable, times: RowTimes, who: str) -> None:
        self._table = table
        self._times = times
        self._who = who
        self._looked = 0.0  # when it last looked for ended suspensions

    async def do_round(self) -> None:
        """Do the tasks of a round. Raises StoreUnavailable, psycopg.Error."""
        if not (await self._give_back()).waiting:
            return
        for task in await self._table.tasks():
            if task.kind == "mx":
                await self._table.learn_logged(task.suspension)
            else:
                await self._put_off(task)
            await self._table.set_applied(task)

    async def _give_back(self) -> SuspensionWork:
        """Give the rows back whose suspension has ended, and end those whose time is over."""
        work = await self._table.look()
        if work.over:
            await self._table.expire(self._who)
            work = await self._table.look()
        if work.ended:
            await asyncio.sleep(_KNOWN)  # else workers that don't know it put the rows off again
        for number in work.ended:
            rows, after = 0, 0
            while (freed := await self._table.free(number, after, _FREED)).number:
                rows, after = rows + freed.number, freed.last
                await self._table.wake()
            log.info("resumed", suspension=number, rows=rows)
        self._looked = time.monotonic()
        return work

    async def _put_off(self, task: SuspensionTask) -> None:
        done, after = 0, 0
        next_hop = None if task.condition else task.value
        try:
            while ids := await self._table.due_ids(task.condition or "true", after, _PAGE):
                after = ids[-1]
                for start in range(0, len(ids), _PUT_OFF):
                    began = time.monotonic()
                    items = await self._table.items(ids[start : start + _PUT_OFF])
                    waits, overdue = self._times.find_times(items, next_hop)
                    if waits:
                        rows = await self._table.put_off(task.suspension, waits, overdue)
                        done += rows
                        if not rows and task not in await self._table.tasks():
                            return  # it has ended
                    await asyncio.sleep(time.monotonic() - began)  # the mail that flows comes first
                    if time.monotonic() > self._looked + _EVERY:
                        await self._give_back()
        except psycopg.Error as error:
            if not (about_a_row(error) or faults.about_statement(error)):
                raise
            log.warning("a condition fails: workers put off what they meet",
                        suspension=task.suspension, reason=faults.words(error))  # fmt: skip
        log.info("put off", suspension=task.suspension, kind=task.kind, rows=done)


def _make(process: QueuedProcess) -> Work:
    table = SuspensionTable(process.resources.link("suspending", SUSPENDING))
    return SuspensionDuty(table, RowTimes(process), f"upkeep@{process.name}").do_round


DUTY = Duty("suspensions", _EVERY, _make, in_turn=True)
