"""Outcomes are written in groups: one commit for all that came during the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from pgmta.errors import AnswerLost, Backend, StoreUnavailable, Undecided
from pgmta.logs import get
from pgmta.model import Item, Outcome, Reply
from pgmta.postgres import faults
from pgmta.states import NOT_BEGUN_EVENTS, Event
from pgmta.store.queue.settle import Settlements
from queued.process.delivery_figures import DeliveryFigures
from queued.worker.leases import Leases
from queued.worker.spans import Spans


class BatchWindow:
    """Lets a batch grow to the size of the one before, for at most `patience` seconds.

    A statement costs several times as much as a row in it. Under load it is thus worth a moment to
    wait for further rows. A single message never waits.
    """

    def __init__(self, patience: float, most: int) -> None:
        self._patience = patience
        self._most = most
        self.wanted = 1
        """Rows with which a batch goes at once."""
        self.waiter: asyncio.Future[None] | None = None
        """Set while a batch grows: then `added` has to be called."""

    def added(self, number: int) -> None:
        """Note that `number` rows wait now."""
        if self.waiter and number >= self.wanted and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, number: int) -> None:
        """Return when the batch should go; `number` rows wait now."""
        if number >= self.wanted:
            return
        loop = asyncio.get_running_loop()
        self.waiter = waiter = loop.create_future()
        timer = loop.call_later(self._patience, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self.waiter = None

    def sent(self, number: int) -> None:
        """Note that a batch of that size was sent."""
        self.wanted = min(self._most, number)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_MAX_BATCH = 500  # outcomes per commit
_BATCH_WINDOW_S = 0.002  # in which a batch may grow: outcomes lost in it are sent twice
_RETRY_PAUSE_S = 0.5
_LOCKED_PAUSE_S = 5.0  # before a row that another transaction holds is tried again
_MAX_REFUSED = 3  # outcomes in a row; then the others are not tried now

_DEFERRAL_EVENTS = (Event.DEFER, Event.UNKNOWN, Event.POSTPONE)

log = get("settle")


class Settler:
    """Writes each outcome that `put` takes, again and again, until it is durable.

    An outcome that the database refuses because of its row puts the row on hold, with the reason.
    The lease of a row lasts until its outcome is written, and is renewed meanwhile. `deferred` gets
    the shortest time in a batch after which a row is tried again, in seconds. `reported` is called
    after a batch with rows that may be in REPORT now.
    """

    def __init__(
        self,
        settlements: Settlements,
        leases: Leases,
        deferred: Callable[[float], None],
        reported: Callable[[], None] = lambda: None,
        spans: Spans | None = None,
        figures: DeliveryFigures | None = None,
    ) -> None:
        self._settlements = settlements
        self._leases = leases
        self._deferred = deferred
        self._reported = reported
        self._spans = spans
        self._figures = figures or DeliveryFigures()
        self.next_hop: Callable[[Item], str] = _domain
        """Names the next hop of a row, for figures."""
        self.returned: list[Callable[[list[int]], None]] = []
        """Get the ids of rows that were handed back."""
        self._pending: list[Outcome] = []
        self._writing: list[Outcome] = []
        self._kept: list[Outcome] = []  # outcomes that were refused, and not because of their rows
        self._kept_until = 0.0  # time when these outcomes are tried again
        self._named: set[int] = set()  # rows of such outcomes that the log has named
        self._locked: set[int] = set()  # rows that another transaction had locked once
        self._window = BatchWindow(_BATCH_WINDOW_S, _MAX_BATCH)
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._away = False
        self._again = False  # whether some outcomes may be written already

    @property
    def open(self) -> list[Outcome]:
        """Outcomes that may not be durable."""
        outcomes = (*self._writing, *self._kept, *self._pending)
        return list({id(outcome): outcome for outcome in outcomes}.values())

    def rows(self) -> list[Item]:
        """Return the rows of these outcomes."""
        return [outcome.item for outcome in self.open]

    def put_outcome(self, outcome: Outcome) -> None:
        """Take an outcome."""
        self._pending.append(outcome)
        self._idle.clear()
        self._work.set()
        if self._window.waiter:
            self._window.added(len(self._pending))

    async def run(self) -> None:
        """Write outcomes as they come; runs until cancelled. It can begin again after an error."""
        if self._writing:  # some of these may be written already
            self._pending[:0], self._writing, self._again = self._writing, [], True
            self._work.set()
        while True:
            await self._work.wait()
            if 0 < len(self._pending) < self._window.wanted:
                await self._window.wait(len(self._pending))
            retried = self._kept and time.monotonic() > self._kept_until
            for source in (self._pending, self._kept if retried else []):
                if not source:
                    continue
                batch = self._writing = source[:_MAX_BATCH]
                del source[:_MAX_BATCH]
                if source is self._pending and len(batch) != self._window.wanted:
                    self._window.sent(len(batch))
                try:
                    await self._settle(batch)
                except Exception as error:
                    await self._refused(batch, error)
                self._writing = []
                if not self._kept:
                    self._again = False
                    self._named.clear()
                    self._locked.clear()
            if not self._pending and self._kept:
                self._work.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_PAUSE_S):
                        await self._work.wait()
                self._work.set()
            elif not self._pending:
                self._work.clear()
                self._idle.set()

    async def flush(self) -> None:
        """Wait until every outcome that was put is durable."""
        await self._idle.wait()

    async def _refused(self, batch: list[Outcome], error: Exception) -> None:
        """Write the other outcomes of a batch that PostgreSQL refuses as a whole."""
        if not self._named:  # otherwise the log has it already
            log.warning("can't settle a batch", outcomes=len(batch), reason=faults.one_line(error))
        if len(batch) > 1:
            await self._write_singly(batch)
        elif not await self._set_aside(batch[0], error):
            self._keep(batch[0], error)

    async def _write_singly(self, batch: list[Outcome]) -> None:
        refused = 0
        for number, outcome in enumerate(batch):
            self._writing = batch[number:]
            try:
                await self._settle([outcome])
                refused = 0
            except Exception as error:
                if await self._set_aside(outcome, error):
                    refused = 0
                    continue
                self._keep(outcome, error)
                refused += 1
            if (
                refused == _MAX_REFUSED
            ):  # the reason is not the rows, but the statement or the schema
                self._kept[:0] = batch[number + 1 :]  # which then come first the next time
                return

    def _keep(self, outcome: Outcome, error: Exception) -> None:
        """Try the outcome again later, for as long as this process lives."""
        self._kept.append(outcome)
        row, locked = outcome.item.id, faults.locked(error)
        self._kept_until = time.monotonic() + (_LOCKED_PAUSE_S if locked else _RETRY_PAUSE_S)
        if locked and row not in self._locked:  # most locks end before the next try
            self._locked.add(row)
        elif row not in self._named:
            self._named.add(row)
            log.error("outcome is kept until the database takes it", reason=faults.one_line(error),
                      **_facts(outcome))  # fmt: skip

    async def _set_aside(self, outcome: Outcome, error: Exception) -> bool:
        """Put the row of a refused outcome on hold; return False if the reason is not the row."""
        if not faults.about_row(error):
            return False
        try:
            await self._settlements.set_aside(outcome, faults.one_line(error))
        except Exception as problem:
            log.warning(
                "can't put a row on hold", reason=faults.one_line(problem), **_facts(outcome)
            )
            return False
        log.error("outcome refused by the database: the row is on hold",
                  reason=faults.one_line(error), **_facts(outcome))  # fmt: skip
        self._drop(outcome)
        return True

    async def _settle(self, batch: list[Outcome]) -> None:
        """Write the outcomes as soon as PostgreSQL can, and drop their leases.

        Raises the error with which PostgreSQL refuses them.
        """
        lost: list[Backend] = []
        began = time.monotonic()
        while True:
            sent = False
            try:
                if lost:
                    await self._settlements.end(lost)
                sent = True
                changed = await self._settlements.settle(batch, self._again)
                break
            except StoreUnavailable as error:
                if sent and isinstance(error, Undecided):
                    self._again = True
                    if isinstance(error, AnswerLost):
                        lost.append(error.backend)
                if not self._away:
                    log.warning("can't settle", outcomes=len(batch), reason=str(error))
                self._away = True
                await asyncio.sleep(_RETRY_PAUSE_S)
            except Exception as error:
                if self._spans:
                    self._spans.settled(batch, time.monotonic() - began, error)
                raise
        if self._away:
            log.info("database is back")
        self._away = False
        for outcome in batch:
            if not (outcome.item.id in changed or self._again):
                _warn_moved(outcome)
            self._drop(outcome)
        try:
            self._tell(batch, changed, time.monotonic() - began)
        except Exception as error:  # the outcomes are durable, with or without figures
            log.error("settled outcomes are not counted", outcomes=len(batch), exc_info=error)

    def _tell(self, batch: list[Outcome], changed: set[int], seconds: float) -> None:
        """Tell the other parts of outcomes that are durable."""
        if self._spans:
            self._spans.settled(batch, seconds)
        known = None if self._again else changed
        self._figures.count_settled(batch, known, self.next_hop, seconds)
        if others := [o for o in batch if o.event is not Event.DELIVERED or o.report]:
            if delays := [outcome.delay for outcome in others if outcome.event in _DEFERRAL_EVENTS]:
                self._deferred(min(delays))
            if returned := [o.item.id for o in others if o.event is Event.HAND_BACK]:
                for tell in self.returned:
                    tell(returned)
            if any(map(_is_reported, others)):
                self._reported()

    def _drop(self, outcome: Outcome) -> None:
        """Drop the lease of a row, and hand it back if it was claimed again meanwhile."""
        if again := self._leases.drop(outcome):
            now = datetime.now(UTC)
            self.put_outcome(Outcome(again, Event.HAND_BACK, Reply(0, ""), started=now, ended=now))


def _domain(item: Item) -> str:
    return item.domain


def _is_reported(outcome: Outcome) -> bool:
    """Return whether an outcome moves its row to REPORT."""
    ended = outcome.event in (Event.FAIL, Event.SUPPRESS)
    return (ended and outcome.item.on_failed == "bounce") or bool(outcome.report)


def _warn_moved(outcome: Outcome) -> None:
    """Log that a row was taken over, or changed by an operator, before its outcome was written."""
    if outcome.event not in NOT_BEGUN_EVENTS:
        duplicate = outcome.event is Event.DELIVERED
        log.warning("row had moved on", duplicate=duplicate, **_facts(outcome))


def _facts(outcome: Outcome) -> dict[str, object]:
    item = outcome.item
    return {"row": item.id, "message": item.message_id, "outcome": outcome.event.value}
