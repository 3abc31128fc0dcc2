"""A stage: a step of each message between its claim and its envelopes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from pgmta.logs import get
from pgmta.model import Item, Message
from pgmta.postgres.database_time import DatabaseTime
from pgmta.postgres.link import Link
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.returned import ReturnedLog
from queued.config import QueuedConfig
from queued.delivery.transport.destination import Destination
from queued.delivery.transport.envelope import LeaseGuard
from queued.delivery.transport.gate import Gate
from queued.delivery.transport.result import NOT_BEGUN, Result, internal
from queued.delivery.transports import Transports
from queued.outgoing.outgoing import Outgoing
from queued.routing.routes import Routed
from queued.signing.signers import Signers

log = get("worker")

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
class TimedMail:
    """Rows that wait in a stage for their times, and those that claims leave out meanwhile."""

    most: int = 250
    """Rows that may wait, of mail that claims can leave out."""
    load: int = 0
    """Rows that wait."""
    left_out: dict[str, LeftOutPeriod] = field(default_factory=dict)
    """Labels that claims leave out."""
    wake: Callable[[], object] = lambda: None
    """Is called when such mail may be claimed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a worker has from its process for the mail on its way out.

    `returned` writes into the log what came back, and `signers` sign; None: nobody does. The
    `gate` knows which mail may not go now. Times of attempts are of the `clock` of PostgreSQL.
    `link` returns a connection of the worker by its name, for a stage that needs one.
    """

    contents: Contents
    transports: Transports
    returned: ReturnedLog | None = None
    signers: Signers | None = None
    gate: Gate = field(default_factory=Gate)
    clock: DatabaseTime = field(default_factory=DatabaseTime)
    link: Callable[[str], Link] | None = None


class Dispatcher(Protocol):
    """What stages ask of the worker, which knows the rows before and after them."""

    def end(self, items: list[Item], result: Result, started: datetime | None = None) -> object:
        """End the attempt of rows with the same result; it began at `started`, or now."""

    def end_unowned(
        self, items: list[Item], result: Result, started: datetime | None = None
    ) -> object:
        """End the attempt likewise of those rows that no part has, after an error."""

    def dispatch(self, items: list[Item], messages: dict[int, Message]) -> object:
        """Take rows with another recipient as if they were just claimed."""

    def route(self, item: Item, message: Message) -> Routed:
        """Return the route of a row with another recipient."""

    def connected(self, destination: Destination) -> bool:
        """Return whether a destination has a connection."""

    def jammed(self, destination: Destination) -> bool:
        """Return whether more mail waits at a destination than it has connections."""


@dataclass(slots=True, kw_only=True)
class StageContext:
    """What the stages of one worker share. `go_on` takes a message that a stage had taken."""

    means: Means
    guard: LeaseGuard
    dispatcher: Dispatcher
    go_on: Callable[[OutgoingStage, Outgoing], None] = lambda _, outgoing: None
    timed: TimedMail = field(default_factory=TimedMail)
    load: int = 0
    """Rows that wait in a stage."""
    free_octets: int
    """Octets of content that may come with the next claim; negative if there are too many."""

    def begin_wait(self, outgoing: Outgoing) -> None:
        """Count a message that a stage has taken."""
        self.load += len(outgoing.items)
        self.free_octets -= outgoing.content_octets

    def end_wait(self, outgoing: Outgoing) -> None:
        """Count a message no more, because it goes on or ends."""
        self.load -= len(outgoing.items)
        self.free_octets += outgoing.content_octets


class OutgoingStage:
    """A step that turns a message into another one, or into a result.

    `configured` returns a function that is called for each message, in the event loop. It must not
    block, and its exceptions defer the rows. A stage that has to wait takes the message, names its
    rows as long as it has them, and calls `context.go_on` later. `context.begin_wait` and
    `end_wait` count it.

    `_work` is the task of a stage that has one at a time.
    """

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self._work: asyncio.Task[None] | None = None

    @property
    def names(self) -> set[str]:
        """The domains, or labels, of the rows that wait."""
        return set()

    def rows(self) -> Iterable[Item]:
        """Return the rows that it has: a leased row that no part has loses its lease."""
        return ()

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


@dataclass(slots=True, eq=False)
class Waiting:
    """A message that waits in a QueueStage."""

    outgoing: Outgoing


class QueueStage[W: Waiting](OutgoingStage):
    """A stage whose messages wait for a task. It does at most `most` of them at a time.

    After an error the rows of a batch that no other part has are deferred, and the next batch
    follows.
    """

    most = 1

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        self._waiting: deque[W] = deque()
        self._batch: list[W] = []  # the batch that is under way

    async def _do(self, batch: list[W]) -> None:
        """Let the messages of a batch go on, or end them."""
        raise NotImplementedError

    @property
    def names(self) -> set[str]:
        """The domains, or labels, of the rows that wait."""
        return {name for each in (*self._batch, *self._waiting) for name in each.outgoing.names}

    def rows(self) -> Iterable[Item]:
        """Return the rows that wait or are under way, as long as there is a task for them."""
        if not self._works:
            return ()
        return [item for each in (*self._batch, *self._waiting) for item in each.outgoing.items]

    def _take(self, message: W) -> None:
        """Let a message wait for its turn."""
        self._begin()
        self.context.begin_wait(message.outgoing)
        self._waiting.append(message)

    @property
    def _works(self) -> bool:
        return self._work is not None and not self._work.done()

    def _begin(self) -> None:
        if not self._works:
            self._work = asyncio.create_task(self._run())
            self._work.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if error := task.exception():
            log.error("a stage failed", stage=type(self).__name__, exc_info=error)
        if self._waiting:
            self._begin()

    async def _run(self) -> None:
        await asyncio.sleep(0)  # the rest of the claim comes in this turn of the event loop
        while self._waiting:
            number = min(self.most, len(self._waiting))
            self._batch = [self._waiting.popleft() for _ in range(number)]
            await self._do_batch()

    async def _do_batch(self) -> None:
        batch, result = self._batch, NOT_BEGUN  # the result of mail of an aborted batch
        failed = True
        try:
            await self._do(batch.copy())
            failed = False
        except Exception as error:
            name, numbers = type(self).__name__, [each.outgoing.message.id for each in batch]
            log.error("a stage failed", stage=name, messages=numbers, exc_info=error)
            result = Result.from_error(internal(error), "")
        finally:
            self._batch = []
            for each in batch:
                self.context.end_wait(each.outgoing)
                if failed:
                    outgoing = each.outgoing
                    self.context.dispatcher.end_unowned(outgoing.items, result, outgoing.started)

    def drain(self) -> list[Outgoing]:
        """Return the messages that have to wait for their turn."""
        left = [each.outgoing for each in self._waiting]
        self._waiting.clear()
        for outgoing in left:
            self.context.end_wait(outgoing)
        return left
