"""Group commit: while one commit is under way, the messages of all sessions gather for the next."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from pgmta.config.ingest import Ingest
from pgmta.daemon_role import DaemonRole
from pgmta.errors import StoreUnavailable, Undecided
from pgmta.intake.chunk_writer import ChunkWriter, Part
from pgmta.intake.content import Content, DoneCallback, State
from pgmta.intake.ids import Ids
from pgmta.logs import get
from pgmta.metrics.series import NUMBERS, SECONDS, Histogram
from pgmta.model import CHUNK_OCTETS, PART_OCTETS, NewMessage
from pgmta.postgres.notify import Notifier
from pgmta.postgres.outage import Outage
from pgmta.postgres.resources import Resources
from pgmta.store.admin.daemons import Heartbeat
from pgmta.store.queue.enqueue import SESSION, Enqueue, chunk_count
from pgmta.store.schema import Schema

# names of the module are found quicker than members of the enumeration
_WAITING, _COMMITTING, _COMMITTED = State.WAITING, State.COMMITTING, State.COMMITTED
_UNDECIDED = State.UNDECIDED

log = get("ingest")

MAX_MESSAGES = 100  # of a commit
MAX_OCTETS = 16 << 20  # of content in a commit
_LARGE_CHUNKS = PART_OCTETS // CHUNK_OCTETS  # a client with a larger message has much to send again
_LARGE_WAIT_FACTOR = 4  # a large message may take so many times as long
_LOOK_INTERVAL_S = 0.25  # at how long commits take
_IDLE_LOOK_INTERVAL_S = 1.0  # while no message waits
_MAX_COMMIT_S = 420.0
"""While a commit is under way, its clients are answered after so long.

A client waits ten minutes for the reply to the final dot (RFC 5321, section 4.5.3.2.6). Two of them
may have passed until its content was stored.
"""


class IntakeFigures:
    """Counts groups that are durable, once each."""

    def __init__(self) -> None:
        self.messages = 0
        self.recipients = 0
        self.octets = 0
        self.refused = 0
        """Messages that could not be stored, because PostgreSQL was away or refused them."""
        self.seconds = Histogram(SECONDS)
        """How long the commit of a group took."""
        self.sizes = Histogram(NUMBERS)
        """Messages of a group."""

    def count_group(self, group: Sequence[Content], seconds: float) -> None:
        """Count a group that is committed."""
        self.seconds.observe(seconds)
        self.sizes.observe(len(group))
        self.messages += len(group)
        for content in group:
            if message := content.message:
                self.recipients += len(message.recipients)
                self.octets += message.size


class Committer:
    """Stores accepted messages, and answers each session when its message is durable."""

    def __init__(
        self,
        role: DaemonRole,
        resources: Resources,
        config: Ingest,
        notifier: Notifier,
        note: Callable[[list[Content]], None] | None = None,
    ) -> None:
        self._role = role
        self._config = config
        self._note = note  # called with each committed group, after its sessions are answered
        self._notifier = notifier
        # PostgreSQL ends a statement that takes longer, and nothing of it stays. The commit itself
        # has no limit, because a cancelled commit leaves its result unknown.
        limit, longer = _limit(config.wait), _limit(config.wait * _LARGE_WAIT_FACTOR)
        self._links = [
            resources.link(f"messages {number}", SESSION | limit, proof_s=config.wait)
            for number in range(config.connections)
        ]
        # this connection is opened for the first large message
        self._large = resources.link("large", SESSION | longer, proof_s=config.wait)
        self._side = resources.link("side")
        self.schema = Schema()
        self.ids = Ids(Enqueue(self._side, self.schema))
        self.outage = Outage(config.patience, self.ids.fill, self._give_up)
        """Whether PostgreSQL is away, and whether to wait for it."""
        self.chunks = ChunkWriter(resources, self.outage)
        self._storing: set[Content] = set()  # complete contents whose only part is being written
        self._pending: deque[Content] = deque()
        self._writing: list[list[Content]] = []
        self._work = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        """They end by `stop` only."""
        self.figures = IntakeFigures()
        """Counts of the groups that are durable."""

    def heartbeat(self, host: str) -> Heartbeat:
        """Return the heartbeat of this process; it learns the schema for all that is written."""
        return self._role.heartbeat(self._side, self.schema, host)

    def start(self) -> None:
        """Begin to write."""
        self.chunks.start()
        coroutines = [self._run(Enqueue(link, self.schema)) for link in self._links]
        self.tasks = [asyncio.create_task(each) for each in (*coroutines, self._watch())]

    async def stop(self) -> None:
        """End its tasks. Call it when no session waits for a commit any more."""
        for group in self._writing:
            self._leave_open(group, f"{self._role.name} stops")
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.outage.stop()
        await self.chunks.stop()

    def commit(
        self,
        content: Content,
        message: NewMessage,
        done: DoneCallback,
        log_template: Sequence[str] = (),
    ) -> None:
        """Store the message; `done` is called once: with None when it is durable, or the error.

        `log_template` is the text around the values of its line in the log; without any, none.

        The error is StoreUnavailable if PostgreSQL is away for longer than `ingest.patience`, or
        takes longer than `ingest.wait`. A message that was not yet on its way by then is discarded.
        The error is Undecided if the result of the commit could not be found out in time.
        """
        content.message, content.done = message, done
        content.log_template = log_template
        content.collected = 0  # the rest is in the message itself
        content.since = time.monotonic()
        if len(self.ids.available) < self.ids.low and not self.outage.away:
            self.ids.refill()
        if len(message.body) > CHUNK_OCTETS:  # too large for the message's own row
            content.state = State.WRITING
            self._storing.add(content)
            stored = partial(self._stored, content)
            self.chunks.put_part(Part(content, message.body, stored, whole=True))
        else:
            content.state = _WAITING
            self._pending.append(content)
            self._work.set()

    async def take_id(self) -> int:
        """Return a message id.

        Raises psycopg.Error, and StoreUnavailable, which takes PostgreSQL for away: also if there
        is none within `ingest.wait`, as without a synchronous standby.
        """
        try:
            async with asyncio.timeout(self._config.wait):
                return await self.outage.outlast(self.ids.take_id)
        except TimeoutError:
            error = Undecided("the reservation of message ids takes too long")
            self.outage.note(error)
            raise error from None

    @property
    def lag(self) -> float:
        """Seconds for which the oldest complete message waits for its commit, or all for ids.

        Large messages do not count: many of them take long at any speed. Nor does an outage.
        """
        if self.outage.waits:
            return 0.0
        oldest = [self.ids.asked_at, *(content.since for content in self._storing)]
        for group in (self._pending, *self._writing):
            oldest += [content.since for content in group if content.chunks <= _LARGE_CHUNKS][:1]
        return max(0.0, time.monotonic() - max(min(oldest), self.outage.ended_at))

    @property
    def waiting(self) -> int:
        """Complete messages that wait for their commit, or whose commit is under way."""
        return len(self._pending) + len(self._storing) + sum(map(len, self._writing))

    @property
    def refuses(self) -> bool:
        """Whether PostgreSQL is away, and no message waits for it."""
        return self.outage.refuses

    def _stored(self, content: Content, error: Exception | None) -> None:
        """Store the message next, if the only part of its content has been written."""
        self._storing.discard(content)
        message = content.message
        if message:
            message.chunks = content.chunks = chunk_count(len(message.body))
            message.body = b""
        if content.state is not State.WRITING:
            return  # this content was given up meanwhile
        if error:
            self._refuse([content], error)
            return
        content.state = State.WAITING
        self._pending.append(content)
        self._work.set()

    def _take(self) -> list[Content]:
        group: list[Content] = []
        octets = 0
        while self._pending and len(group) < MAX_MESSAGES:
            content = self._pending[0]
            message = content.message
            octets += len(message.body) if message else 0
            if group and octets > MAX_OCTETS:
                break
            self._pending.popleft()
            if content.state is _WAITING:  # not if its session has gone
                content.state = _COMMITTING
                group.append(content)
        return group

    async def _run(self, store: Enqueue) -> None:
        while True:
            await self._work.wait()
            if self.outage.waits:
                await self.outage.wait()
            group = self._take()
            if not group:
                self._work.clear()
                continue
            self._writing.append(group)
            try:
                await self._write(store, group)
            finally:
                self._writing.remove(group)
                del group  # otherwise its content would stay in memory until the next group

    async def _watch(self) -> None:
        """Answer sessions whose message waits too long, without a timer for each."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S if self.waiting else _IDLE_LOOK_INTERVAL_S)
            now = time.monotonic()
            error = StoreUnavailable("the commit takes too long")
            self._give_up(error, now)
            self._refuse([c for c in self._storing if c.since < now - self._config.wait], error)
            for group in self._writing:
                # This group may yet be committed, so a client gets no 451 as long as it waits
                late = [c for c in group if c.since < now - _MAX_COMMIT_S and c.done]
                self._leave_open(late, "the commit takes too long")
                self._answer(late, Undecided("the commit takes too long"))
            self.chunks.purge()

    def _give_up(self, error: StoreUnavailable, now: float = math.inf) -> None:
        """Refuse messages that have waited too long, without `now` all that wait."""
        wait = self._config.wait
        late = [
            c
            for c in self._pending
            if now - c.since > wait * (_LARGE_WAIT_FACTOR if c.chunks > _LARGE_CHUNKS else 1)
        ]
        if late:
            gone = set(late)
            self._pending = deque(c for c in self._pending if c not in gone)
        self._refuse(late, error)

    async def _write(self, store: Enqueue, group: list[Content]) -> None:
        began = time.monotonic()
        if any(content.chunks > _LARGE_CHUNKS for content in group):
            store = Enqueue(self._large, self.schema)
        wake = began > self._notifier.quiet_at
        try:
            messages = [c.message for c in group if c.message]
            woke = await store.commit(messages, _MAX_COMMIT_S, self._look_failed, wake=wake)
        except Undecided as error:
            self._leave_open(group, str(error))
            self._answer(group, error)
        except StoreUnavailable as error:
            if self.outage.note(error):
                self._put_back(group)
            else:
                self._refuse(group, error)
        except (
            Exception
        ) as error:  # also one that is not psycopg's, of a message that can't be encoded
            if len(group) > 1:
                await self._write_singly(store, group)
                return
            log.error("message refused by the database", id=group[0].id, reason=str(error))
            self._refuse(group, error)
        else:
            self.outage.end()
            seconds = time.monotonic() - began
            for content in group:
                if content.state is _UNDECIDED:
                    log.warning("message is in the queue, and its client got 451",
                                id=content.id)  # fmt: skip
                content.state = _COMMITTED
                self.chunks.small += not content.chunks
            # PostgreSQL gets the next group first, and works while these are answered
            loop = asyncio.get_running_loop()
            loop.call_soon(self._answer, group, None)
            loop.call_soon(self.figures.count_group, group, seconds)
            if self._note:
                loop.call_soon(self._note, group)
            if woke:
                self._notifier.count()
            else:
                self._notifier.due.set()

    async def _write_singly(self, store: Enqueue, group: list[Content]) -> None:
        """Write each message by itself: one that PostgreSQL refuses must not refuse the others."""
        while group:
            await self.outage.wait()
            content = group[0]
            if content.done:
                await self._write(store, [content])
            else:
                content.remove()  # the session has gone, and nothing is stored
            del group[0]  # its session was answered

    def _put_back(self, group: list[Content]) -> None:
        """Have messages of which nothing is stored wait for the end of an outage."""
        for content in reversed(group):
            if content.done:
                content.state = _WAITING
                self._pending.appendleft(content)
            else:
                content.remove()  # the session has gone
        self._work.set()

    def _look_failed(self, error: StoreUnavailable) -> None:
        """Note an outage in which it is open what became of a commit; what waits may be refused."""
        if not self.outage.note(error):
            self._give_up(error)

    def _refuse(self, contents: list[Content], error: Exception) -> None:
        """Discard messages of which nothing is stored, and answer their sessions."""
        self.figures.refused += len(contents)
        for content in contents:
            done = content.done
            content.remove()
            content.done = done
        self._answer(contents, error)

    @staticmethod
    def _answer(contents: list[Content], error: Exception | None) -> None:
        """Answer the session of each content, once; a session that fails stops no other."""
        for content in contents:
            done, content.done = content.done, None
            if done:
                try:
                    done(error)
                except Exception as fault:
                    log.error("a session failed at its answer", id=content.id, exc_info=fault)

    @staticmethod
    def _leave_open(group: list[Content], reason: str) -> None:
        """Log each message that may be in the queue, though no client got 250."""
        for content in group:
            message = content.message
            if content.state is State.COMMITTING and message:
                content.state = State.UNDECIDED
                log.warning("message may be in the queue, and its client got no 250",
                            id=content.id, sender=message.sender,
                            recipients=len(message.recipients), reason=reason)  # fmt: skip


def _limit(seconds: float) -> dict[str, str]:
    """Return the setting that ends a statement after that time: a positive int4."""
    return {"statement_timeout": f"{max(1, min(round(seconds * 1000), 2**31 - 1))}ms"}
