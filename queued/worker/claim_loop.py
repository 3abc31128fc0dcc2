"""The loop of a delivering worker: it claims due rows while there are free slots."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from pgmta.errors import SchemaMismatch, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.service import first
from pgmta.store.queue.claim import Claims
from queued.config import Worker
from queued.worker.dispatch import Dispatch
from queued.worker.due_timer import DueTimer
from queued.worker.lease import Leases
from queued.worker.turns import DelayedWake, TurnSchedule

_BACKOFF = 0.5  # seconds, while PostgreSQL is away

log = get("worker")


class Outage:
    """The claimers of a worker that can't claim; the log has the start and end of the outage."""

    def __init__(self) -> None:
        self.claimers: set[Claimer] = set()

    def begin(self, claimer: Claimer, reason: str) -> None:
        """Note that the claimer can't claim."""
        if not self.claimers:
            log.warning("can't claim", reason=reason)
        self.claimers.add(claimer)

    def end(self, claimer: Claimer) -> None:
        """Note that the claimer has claimed."""
        self.claimers.remove(claimer)
        if not self.claimers:
            log.info("database is back")


class Claimer:
    """Makes the claims of one loop and dispatches the rows; `reserved` rows have slots apart."""

    def __init__(
        self,
        name: str,
        claims: Claims,
        leases: Leases,
        dispatch: Dispatch,
        schedule: TurnSchedule,
        outage: Outage,
        reserved: bool = False,
    ) -> None:
        self.inline = 0
        """Octets up to which content comes with a claim."""
        self.returned = 0
        """Rows of the last claim that found no room at their next hop."""
        self.claimed: Callable[[list[Item]], None] | None = None
        """Gets the rows of each claim."""
        self.claims = claims
        """The statements."""
        self._name = name
        self._leases = leases
        self._dispatch = dispatch
        self._schedule = schedule
        self._outage = outage
        self._reserved = reserved
        self._limit: asyncio.Timeout | None = None  # of the claim under way

    async def claim(self, want: int, busy: list[str], budget: int) -> int:
        """Claim up to `want` rows of domains that are not busy; return how many came.

        At most `budget` octets of content come with them. A claim that failed counts as full: it
        is repeated, after a while if PostgreSQL is away.
        """
        self.returned = 0
        try:
            if self in self._outage.claimers:
                lost = await self.claims.leases.give_back(list(self._leases.items))
                if lost:
                    log.info("gave back rows of a claim whose answer was lost", rows=lost)
            overdue = self._schedule.overdue if self._schedule.shared else 0.0
            claimed = time.monotonic()
            async with asyncio.timeout(None) as self._limit:
                claim = await self.claims.claim(want, busy, self.inline, budget, overdue)
        except TimeoutError:
            log.warning("a claim under way is given up", worker=self._name)
            return want
        except SchemaMismatch:  # Schema logs it, and the heartbeat looks again
            await asyncio.sleep(_BACKOFF)
            return want
        except (StoreUnavailable, psycopg.Error) as error:
            self._outage.begin(self, str(error))
            await asyncio.sleep(_BACKOFF)
            return want
        finally:
            self._limit = None
        if claim.items:
            if self.claimed:
                self.claimed(claim.items)
            fresh = self._leases.add(claim.items, claimed, self._reserved)
            self.returned = self._dispatch.dispatch(fresh, claim.messages, self._reserved)
        if self in self._outage.claimers:
            self._outage.end(self)
        return len(claim.items)

    def give_up(self) -> None:
        """End the claim under way; rows that it takes nevertheless are free when the lease ends."""
        if self._limit:
            self._limit.reschedule(0.0)


class ClaimLoop:
    """Claims while there are free slots; without mail it sleeps until it is woken or polls."""

    def __init__(
        self,
        config: Worker,
        poll: float,
        claimer: Claimer,
        leases: Leases,
        dispatch: Dispatch,
        schedule: TurnSchedule,
    ) -> None:
        self.claimer = claimer
        self.schedule = schedule
        """The turns of the worker."""
        self.waits_since = math.inf
        """When its wait for mail began, by the monotonic clock; infinite while it claims."""
        self.due = DueTimer(claimer.claims, poll, self.wake)
        """Wakes the loop for rows whose next attempt is due."""
        self._config = config
        self._poll = poll
        self._leases = leases
        self._dispatch = dispatch
        self._woken = asyncio.Event()
        self._freed = leases.watch()
        self._delayed = DelayedWake(schedule, self._woken)
        self._stopping = False

    def wake(self) -> float:
        """Take a notification of mail; return the pause before further ones, 0.0 in our turn."""
        if self.schedule.shared:
            return self._delayed.notify()
        self._woken.set()
        return 0.0

    def stop(self) -> None:
        """Claim nothing more; `run` returns when a claim under way has ended."""
        self._stopping = True
        self.due.stop()
        self._woken.set()
        self._freed.set()

    async def run(self) -> None:
        """Work until stopped."""
        concurrency, leases, schedule = self._config.concurrency, self._leases, self.schedule
        woken = False
        while not self._stopping:
            self._freed.clear()
            free = concurrency - len(leases.items) + len(leases.reserved)
            busy, load = self._dispatch.left_out.busy(free)
            if free < max(1, (concurrency - load) // 4):
                await self._freed.wait()
                continue
            want = min(self._config.batch, max(1, free // 2))
            self._woken.clear()
            began = time.monotonic()
            found = await self.claimer.claim(want, busy, max(0, self._dispatch.stages.room))
            if found >= want:
                continue
            vain = woken and not found
            if vain or began >= self.due.known:
                await self._look_ahead(began, vain=vain)
            poll = schedule.due_in(self._poll) if schedule.shared else self._poll
            self.waits_since = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(poll):
                    if busy:
                        await self._woken_or_room(set(busy))
                    else:
                        await self._woken.wait()
            self.waits_since = math.inf
            woken = self._woken.is_set()

    async def _look_ahead(self, claimed: float, *, vain: bool) -> None:
        """Learn when the next row becomes due; a claim in vain may be for a row that is not yet."""
        if self._stopping or (self.schedule.shared and self.schedule.pause):
            return  # the worker whose turn it is looks ahead
        if vain:
            self.due.forget()
        await self.due.look(claimed)

    async def _woken_or_room(self, busy: set[str]) -> None:
        """Wait for a notification, or until one of the busy domains may be claimed again."""
        leases = self._leases
        while not self._woken.is_set():
            self._freed.clear()
            free = self._config.concurrency - len(leases.items) + len(leases.reserved)
            if not busy <= set(self._dispatch.left_out.busy(free)[0]):
                return
            await first(self._woken, self._freed)
