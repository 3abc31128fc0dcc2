"""The loop of a delivering worker: it claims due rows while there are free slots."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg

from pgmta.errors import SchemaMismatch, StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres import faults
from pgmta.service import first
from pgmta.store.queue.claim import Claim, Claims
from queued.config import Worker
from queued.delivery.transport.gate import Gate
from queued.delivery.transport.result import NOT_BEGUN
from queued.process.delivery_figures import DeliveryFigures
from queued.worker.dispatch import Dispatch
from queued.worker.due_timer import DueTimer
from queued.worker.leases import Leases
from queued.worker.spans import Spans
from queued.worker.turns import DelayedWake, TurnSchedule

_RETRY_PAUSE_S = 0.5  # while PostgreSQL is away
_NEWS_S = 1.0  # after news the time of the next row is asked again for so long

log = get("worker")


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """The parts that the loops of one worker share.

    `failing` are loops that can't claim now. There are `spans` only if OpenTelemetry is on.
    The `gate` knows which mail may not go now.
    """

    name: str
    poll: float
    leases: Leases
    dispatch: Dispatch
    schedule: TurnSchedule
    failing: set[Claimer] = field(default_factory=set)
    spans: Spans | None = None
    figures: DeliveryFigures = field(default_factory=DeliveryFigures)
    gate: Gate = field(default_factory=Gate)


class Claimer:
    """A loop that waits for mail, claims it, and dispatches the rows.

    `reserved` rows have slots apart from the others.
    """

    def __init__(self, context: ClaimContext, claims: Claims, *, reserved: bool = False) -> None:
        self.inline = 0
        """Octets up to which content comes with a claim."""
        self.returned = 0
        """Rows of the last claim that found no room at their next hop."""
        self.claimed: Callable[[Iterable[int]], None] | None = None
        """Gets the ids of the rows of each claim."""
        self.claims = claims
        """The statements."""
        self.schedule = context.schedule
        """The turns of the worker."""
        self.waits_since = math.inf
        """When its wait for mail began, by the monotonic clock; infinite while it claims."""
        self._woken = asyncio.Event()
        self._delayed = DelayedWake(context.schedule, self._woken)
        self.wake = self._delayed.notify
        """Takes a notification of mail; returns the pause before further ones, 0.0 in our turn."""
        self.due = DueTimer(claims, context.poll, self.wake)
        """Wakes the loop for rows whose next attempt is due."""
        self._context = context
        self._leases = context.leases
        self._exclusions = context.dispatch.exclusions
        self._reserved = reserved
        self._limit: asyncio.Timeout | None = None  # time limit of the claim under way
        self._freed = context.leases.watch()
        self._stopping = False
        self._fresh: list[Item] = []  # rows that are claimed and not dispatched yet

    async def run(self) -> None:
        """Work until stopped."""
        raise NotImplementedError

    def rows(self) -> list[Item]:
        """Return the rows that are claimed, and have not come to the stages yet."""
        return self._fresh

    def stop(self) -> None:
        """Claim nothing more; `run` returns when a claim under way has ended."""
        self._stopping = True
        self.due.stop()
        self._woken.set()
        self._freed.set()

    async def claim(self, want: int, busy: list[str], budget: int) -> int:
        """Claim up to `want` rows of domains that are not busy; return how many came.

        At most `budget` octets of content come with them. A claim that failed counts as full: it
        is repeated, after a while if PostgreSQL is away.
        """
        self.returned = 0
        self._leases.claiming[self] = delivered = set[int]()
        try:
            if self in self._context.failing or self.claims.leases.moved:
                lost = await self.claims.leases.give_back(list(self._leases.items))
                if lost:
                    log.info("gave back rows of a claim whose answer was lost", rows=lost)
            if not self._context.gate.ready:
                await self._context.gate.get_ready()
            overdue = self.schedule.overdue if self.schedule.shared else 0.0
            claimed = time.monotonic()
            async with asyncio.timeout(None) as self._limit:
                claim = await self.claims.claim(want, busy, self.inline, budget, overdue)
        except TimeoutError:
            log.warning("a claim under way is given up", worker=self._context.name)
            return want
        except SchemaMismatch:  # Schema has logged it, and the heartbeat looks again
            await asyncio.sleep(_RETRY_PAUSE_S)
            return want
        except (StoreUnavailable, psycopg.Error) as error:
            return await self._fail(want, error)
        finally:
            self._limit = None
            del self._leases.claiming[self]
        if claim.items:
            try:
                await self._dispatch(claim, claimed, delivered)
            except (StoreUnavailable, psycopg.Error) as error:
                return await self._fail(want, error)
            finally:
                self._fresh = []
        self._context.figures.count_claim(len(claim.items), time.monotonic() - claimed)
        if self in (failing := self._context.failing):
            failing.remove(self)
            if not failing:
                log.info("database is back")
        return len(claim.items)

    async def _fail(self, want: int, error: Exception) -> int:
        """Wait a while after a claim that failed; return the rows that it counts for."""
        if not self._context.failing:
            log.warning("can't claim", reason=faults.one_line(error))
        self._context.failing.add(self)
        self._context.figures.failed_claims += 1
        await asyncio.sleep(_RETRY_PAUSE_S)
        return want

    async def _dispatch(self, claim: Claim, claimed: float, delivered: set[int]) -> None:
        self._fresh = fresh = self._leases.add_claimed(
            claim.items, claimed, delivered, self._reserved
        )
        if self.claimed:
            self.claimed([item.id for item in claim.items])
        if spans := self._context.spans:
            spans.claimed(claim, time.monotonic() - claimed)
        if self._context.gate.looks:
            try:
                await self._context.gate.look_at(fresh)
            except (StoreUnavailable, psycopg.Error):
                # because nobody knows which of these rows may go
                self._context.dispatch.end(fresh, NOT_BEGUN)
                raise
        self.returned = self._context.dispatch.dispatch(fresh, claim.messages, self._reserved)

    def give_up(self) -> None:
        """End the claim under way; rows that it takes nevertheless are free when the lease ends."""
        if self._limit:
            self._limit.reschedule(0.0)


class ClaimLoop(Claimer):
    """Claims while there are free slots; without mail it sleeps until it is woken or polls."""

    def __init__(self, config: Worker, context: ClaimContext, claims: Claims) -> None:
        super().__init__(context, claims)
        self._config = config

    async def run(self) -> None:
        """Work until stopped."""
        concurrency, leases, schedule = self._config.concurrency, self._leases, self.schedule
        woken = False
        while not self._stopping:
            self._freed.clear()
            free = concurrency - len(leases.items) + len(leases.reserved)
            busy, load = self._exclusions.busy(free)
            if free < max(1, (concurrency - load) // 4):
                await self._freed.wait()
                continue
            want = min(self._config.batch, max(1, free // 2))
            woken |= self._woken.is_set()
            self._woken.clear()
            began = time.monotonic()
            claimed = await self.claim(
                want, busy, max(0, self._context.dispatch.stages.context.free_octets)
            )
            if claimed >= want:
                continue
            vain = woken and not claimed
            if vain or began >= self.due.known:
                await self._look_ahead(began, vain=vain)
            poll = schedule.due_in(self._context.poll) if schedule.shared else self._context.poll
            if woken and claimed:  # otherwise the news may be of a row that is not due yet
                self.due.known, poll = min(self.due.known, began + _NEWS_S), min(poll, _NEWS_S)
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
            return  # the worker that has the turn looks ahead
        if vain:
            self.due.forget()
        await self.due.ask_next(claimed)

    async def _woken_or_room(self, busy: set[str]) -> None:
        """Wait for a notification, or until one of the busy domains may be claimed again."""
        leases = self._leases
        while not self._woken.is_set():
            self._freed.clear()
            free = self._config.concurrency - len(leases.items) + len(leases.reserved)
            if not busy <= set(self._exclusions.busy(free)[0]):
                return
            await first(self._woken, self._freed)
