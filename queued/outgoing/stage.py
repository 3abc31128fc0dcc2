"""A stage: a step of each message between its claim and its envelopes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pgmta.model import Item, Message
from pgmta.postgres.database_time import DatabaseTime
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.returned import ReturnedLog
from pgmta.store.records.reservations import BudgetReservations
from queued.config import QueuedConfig
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import LeaseGuard
from queued.delivery.transport.result import Result
from queued.delivery.transport.suspended_mail import SuspendedMail
from queued.delivery.transports import Transports
from queued.outgoing.outgoing import Outgoing
from queued.routing.routes import Routed
from queued.signing.signers import Signers

type Prepared = Outgoing | Result | list[Outgoing] | None
"""A message, or several that share its rows, or the result of all its rows.

None says that the stage has taken the rows: it concludes them, or lets them go on later.
"""

type Prepare = Callable[[Outgoing], Prepared]


class LeftOutPeriod(NamedTuple):
    """A period by the monotonic clock; infinite: until there is room."""

    since: float
    until: float


@dataclass(slots=True)
class Rates:
    """Rows with a rate that wait for their times, and those that claims leave out."""

    most: int = 250
    """Rows that may wait, of mail that claims can leave out."""
    load: int = 0
    """Rows that wait."""
    left_out: dict[str, LeftOutPeriod] = field(default_factory=dict)
    """Labels that claims leave out."""
    wake: Callable[[], object] = lambda: None
    """Is called when such mail may be claimed again."""


@dataclass(slots=True, kw_only=True)
class StageContext:
    """The means of the stages of one worker.

    `end` takes rows with the result of all, and the time at which their attempt began; `dispatch`
    takes rows with another recipient. `route` returns the route of a row. `go_on` takes a message
    that a stage had taken. `connected` says whether a destination has a connection, and
    `jammed` whether more mail waits there than it has connections. `guard` knows the leases,
    and `clock` the time of PostgreSQL. Without `reservations` no mail has a rate.
    """

    contents: Contents
    guard: LeaseGuard
    clock: DatabaseTime = field(default_factory=DatabaseTime)
    transports: Transports
    attempts: ReturnedLog | None
    signers: Signers | None
    end: Callable[[list[Item], Result, datetime | None], object]
    dispatch: Callable[[list[Item], dict[int, Message]], object]
    route: Callable[[Item, Message], Routed]
    go_on: Callable[[OutgoingStage, Outgoing], None] = lambda _, outgoing: None
    connected: Callable[[Destination], bool] = lambda _: True
    jammed: Callable[[Destination], bool] = lambda _: False
    reservations: BudgetReservations | None = None
    rates: Rates = field(default_factory=Rates)
    suspended: SuspendedMail = field(default_factory=SuspendedMail)
    load: int = 0
    """Rows that wait in a stage."""
    room: int
    """Octets of content that may come with the next claim; negative if there are too many."""

    def begin_wait(self, outgoing: Outgoing) -> None:
        """Count a message that a stage has taken."""
        self.load += len(outgoing.items)
        self.room -= outgoing.room

    def end_wait(self, outgoing: Outgoing) -> None:
        """Count a message no more, because it goes on or ends."""
        self.load -= len(outgoing.items)
        self.room += outgoing.room


class OutgoingStage:
    """A step that turns a message into another one, or into a result.

    `configured` returns a function that is called for each message, in the event loop. It must not
    block, and its exceptions defer the rows. A stage that has to wait takes the message, and calls
    `context.go_on` later. `context.begin_wait` and `end_wait` count it.

    `_work` is the task of a stage that has one at a time.
    """

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self._work: asyncio.Task[None] | None = None

    @property
    def names(self) -> set[str]:
        """The domains, or labels, of the rows that wait."""
        return set()

    def configured(self, config: QueuedConfig) -> Prepare | None:
        """Return what to do with each message from now on; None if there is nothing to do."""
        raise NotImplementedError

    def drain(self) -> list[Outgoing]:
        """Begin nothing new, and return the messages that wait. Rows in other forms end here."""
        return []

    async def wait(self) -> None:
        """Wait for the work that is under way."""
        if self._work:
            await asyncio.wait([self._work])

    async def abort(self) -> None:
        """End that work at once; its rows are handed back."""
        if self._work:
            self._work.cancel()
            await self.wait()
