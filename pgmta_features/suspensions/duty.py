"""Suspensions: due mail that meets one is put off in batches, and comes back after its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg
from psycopg import errors

from pgmta.errors import DeliveryError, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres import faults
from pgmta.store.queue.costly import timed_out
from pgmta.store.queue.failing_conditions import about_a_row
from pgmta_features.suspensions.store import (
    ANY_SUSPENSION,
    LOG_SETTINGS,
    SUSPENDING_SETTINGS,
    RowPlace,
    SuspensionTable,
    SuspensionTask,
    SuspensionWork,
)
from pgmta_features.suspensions.suspended_mail import host_matches, leads_to
from queued.config import QueuedConfig
from queued.process.queued_process import QueuedProcess
from queued.routing.retry_until import look_again
from queued.routing.routes import Routes
from queued.upkeep.duty import Duty, Work

EVERY_S = 2.0
"""Seconds between rounds; workers put off what they meet meanwhile."""
KNOWN_S = 0.6
"""Seconds until each process knows that a suspension has ended."""
PAGE_IDS = 50_000
"""Ids that one statement finds."""
PUT_OFF_ROWS = 1000
"""Rows that one commit puts off."""
LEARNT_DOMAINS = 500
"""Domains that one statement notes."""
MAX_QUERIES = 50
"""Domains for which name servers are asked at one time."""
QUERIES_S = 60.0
"""Seconds for which they are asked; workers learn the other domains."""
FREED_ROWS = 20_000
"""Rows that one commit gives back: with 5,000 it takes a third longer in all."""

log = get("suspensions")

type BestHosts = Callable[[str], Awaitable[list[str]]]
"""Returns the MX hosts of a domain with the best preference. Raises DeliveryError."""


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
        now = self._process.clock.now()
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
    next one does the rest. `logged` has another connection: to read the log takes long, and rows
    come back meanwhile.
    """

    def __init__(
        self,
        table: SuspensionTable,
        times: RowTimes,
        who: str,
        logged: SuspensionTable,
        best_hosts: BestHosts,
    ) -> None:
        self._table = table
        self._times = times
        self._who = who
        self._logged = logged
        self._best_hosts = best_hosts
        self._looked = 0.0  # time of the last look for ended suspensions

    async def do_round(self) -> None:
        """Do the tasks of a round. Raises StoreUnavailable, psycopg.Error."""
        while (await self._give_back()).waiting and (task := await self._table.task()):
            if task.kind == "mx":
                await self._learn_logged(task)
            else:
                await self._put_off(task)
            await self._table.set_applied(task)

    async def _learn_logged(self, task: SuspensionTask) -> None:
        """Learn domains from the log, if that takes no longer than its connection allows."""
        suspension = task.suspension
        learning = asyncio.create_task(self._learn(task))
        try:
            while not (await asyncio.wait({learning}, timeout=EVERY_S))[0]:
                await self._give_back()
                if not await self._table.counts(suspension):
                    return
            await learning
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, errors.QueryCanceled):
                raise
            log.warning("the log of a day is too long: workers learn the domains of an MX host",
                        suspension=suspension)  # fmt: skip
        finally:
            learning.cancel()
            await asyncio.wait({learning})  # so that its connection is free again

    async def _learn(self, task: SuspensionTask) -> None:
        """Note the domains of the log whose best host is the suspended one.

        The log does not know whether a host was the backup of one that works.
        """
        domains = await self._logged.logged(task.suspension)
        slots = asyncio.Semaphore(MAX_QUERIES)

        async def leads(domain: str) -> bool:
            async with slots:
                try:
                    names = await self._best_hosts(domain)
                except DeliveryError:
                    return False  # workers ask name servers again
            return any(host_matches(name, task.value) for name in names)

        with suppress(TimeoutError):
            async with asyncio.timeout(QUERIES_S):
                for start in range(0, len(domains), LEARNT_DOMAINS):
                    some = domains[start : start + LEARNT_DOMAINS]
                    known = zip(some, await asyncio.gather(*map(leads, some)), strict=True)
                    if pairs := [(task.suspension, domain) for domain, best in known if best]:
                        await self._logged.learn(pairs)

    async def _give_back(self) -> SuspensionWork:
        """Give the rows back whose suspension has ended, and end those whose time is over."""
        work = await self._table.look()
        if work.over:
            await self._table.expire(self._who)
            work = await self._table.look()
        if work.ended:
            # or workers that don't know the end yet would put the rows off again
            await asyncio.sleep(KNOWN_S)
        for number in work.ended:
            rows, after = 0, 0
            while (freed := await self._table.free(number, after, FREED_ROWS)).number:
                rows, after = rows + freed.number, freed.last
                await self._table.wake()
            log.info("resumed", suspension=number, rows=rows)
        self._looked = time.monotonic()
        return work

    async def _put_off(self, task: SuspensionTask) -> None:
        done, after = 0, RowPlace("", 0)
        next_hop = None if task.condition or task.domains else task.value
        try:
            while places := await self._table.due(task, after, PAGE_IDS):
                after = places[-1]
                for start in range(0, len(places), PUT_OFF_ROWS):
                    began = time.monotonic()
                    ids = [place.id for place in places[start : start + PUT_OFF_ROWS]]
                    items = await self._table.items(ids)
                    waits, overdue = self._times.find_times(items, next_hop)
                    rows = 0
                    if waits:
                        rows = await self._table.put_off(task.suspension, waits, overdue)
                        done += rows
                    if not (rows or await self._table.counts(task.suspension)):
                        return  # the suspension has ended
                    await asyncio.sleep(time.monotonic() - began)  # the mail that flows comes first
                    if time.monotonic() > self._looked + EVERY_S:
                        await self._give_back()
        except StoreUnavailable as error:
            if not (timed_out(error) and await self._table.set_aside(task)):
                raise
        except psycopg.Error as error:
            if not (about_a_row(error) or faults.about_statement(error)):
                raise
            log.warning("a condition fails: workers put off what they meet",
                        suspension=task.suspension, reason=faults.one_line(error))  # fmt: skip
        (log.info if done else log.debug)(
            "put off", suspension=task.suspension, kind=task.kind, value=task.value, rows=done
        )


def _make(process: QueuedProcess) -> Work:
    table, logged = (
        SuspensionTable(process.resources.link(name, settings), costly=process.costly)
        for name, settings in (
            ("suspending", SUSPENDING_SETTINGS),
            ("suspending-log", LOG_SETTINGS),
        )
    )
    who = f"upkeep@{process.name}"

    def best_hosts(domain: str) -> Awaitable[list[str]]:
        return process.smtp.hosts.best_hosts(domain)

    return SuspensionDuty(table, RowTimes(process), who, logged, best_hosts).do_round


DUTY = Duty("suspensions", EVERY_S, _make, in_turn=True, look=ANY_SUSPENSION)
