"""Writes the content of large messages into the database, ahead of the messages."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from functools import partial

import psycopg

from pgmta.aging_queue import AgingQueue
from pgmta.errors import AnswerLost, Backend, StoreUnavailable
from pgmta.intake.content import Content, DoneCallback, State
from pgmta.logs import get
from pgmta.model import PART_OCTETS
from pgmta.postgres.outage import Outage
from pgmta.postgres.resources import Resources
from pgmta.store.queue.enqueue import Enqueue, chunk_count

log = get("chunks")

_MAX_CONNECTIONS = 2
_PATIENCE_S = 5.0  # a part, whose client waits, lets older messages go first for so long
# In the WAL the commit of a message comes after those of its chunks. Its fsync makes all of them
# durable, so the commits of the chunks need none.
_COMMIT_SETTINGS = {"synchronous_commit": "off"}
_BEFORE_ALL_IDS = -1  # the number of a whole message in the queue of parts
# While small messages are committed too, a write is followed by a pause of so many times its own
# duration. A write without a whole message may be for messages that never come to an end.
_REST_FACTOR, _REST_FACTOR_AHEAD = 4, 9
_MESSAGES_PER_REMOVAL = 50  # whose chunks are removed by one statement
_BROKEN_WRITE_S = 1.0  # afterwards a write whose connection broke has ended in the server, too


@dataclass(slots=True, eq=False)
class Part:
    """Up to 64 chunks of one content; `done` is called once with the result.

    `whole` says that it is all of its content. A part is not written if its content has left the
    state WRITING meanwhile, because nothing waits for it then.
    """

    content: Content
    octets: bytes
    done: DoneCallback
    whole: bool = False

    @property
    def dead(self) -> bool:
        """Whether nothing waits for it any more."""
        return self.content.state is not State.WRITING

    def answer(self, error: Exception | None) -> None:
        """Report the result; the octets go at once, because part and callback know each other."""
        self.octets = b""
        try:
            self.done(error)
        except Exception as fault:
            log.error("a session failed at its answer", id=self.content.id, exc_info=fault)


class ChunkWriter:
    """Writes parts over two connections: each takes the waiting parts, about 0.5 MB at a time.

    A whole message goes first, and of the others the oldest. So messages become complete one after
    the other, and the database has little content without a message. The clients of the other
    messages wait, because no more is read from them. A part that has waited for 5 s goes before
    all (pgmta/aging_queue.py).

    If a crash comes between the chunks and their message, the chunks are removed as orphans.
    """

    def __init__(self, resources: Resources, outage: Outage) -> None:
        self._outage = outage
        self._links = [
            resources.link(f"chunks {n}", _COMMIT_SETTINGS) for n in range(_MAX_CONNECTIONS)
        ]
        self._waiting: AgingQueue[Part] = AgingQueue(_PATIENCE_S)
        self._writing: set[Content] = set()  # a content has one part under way at most
        self._work = asyncio.Event()
        self.small = 0
        """Messages without chunks that have been committed; they shall not wait for content."""
        self.tasks: list[asyncio.Task[None]] = []
        """They end by `stop` only."""
        self._drops: deque[tuple[float, int]] = deque()  # due time by the loop's clock, and id
        self._dropping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self.tasks = [asyncio.create_task(self._run(Enqueue(link))) for link in self._links]

    async def stop(self) -> None:
        """Remove the chunks that are to be removed."""
        tasks = list(self.tasks)
        if dropping := self._dropping:
            await asyncio.wait([dropping], timeout=5)
            tasks.append(dropping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def put_part(self, part: Part) -> None:
        """Write the part of a content in state WRITING.

        `part.done` gets StoreUnavailable if it is unknown which chunks are stored.
        """
        self._waiting.put(_BEFORE_ALL_IDS if part.whole else part.content.id, part)
        self._work.set()

    async def write_part(self, content: Content, octets: bytes) -> None:
        """Write a part of a content that has an id. Raises StoreUnavailable, psycopg.Error.

        The content is WRITTEN then, or else FAILED.
        """
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not end.done():  # not if the session has gone
                end.set_result(error)

        content.state = State.WRITING
        self.put_part(Part(content, octets, done))
        try:
            if error := await end:
                raise error
            content.chunks += chunk_count(len(octets))
            content.state = State.WRITTEN
        finally:
            if content.state is State.WRITING:
                content.state = State.FAILED

    def drop_chunks(self, content: Content) -> None:
        """Remove the chunks of a discarded content, after a write of it that is under way."""
        if content in self._writing:
            return  # `_run` calls this again after the write
        loop = asyncio.get_running_loop()
        self._drops.append((loop.time() + _BROKEN_WRITE_S, content.id))
        if not self._dropping:
            self._dropping = loop.create_task(self._drop())

    async def _drop(self) -> None:
        """Remove the chunks of discarded contents, many messages per statement."""
        loop = asyncio.get_running_loop()
        try:
            while self._drops:
                await asyncio.sleep(self._drops[0][0] - loop.time())
                ids: list[int] = []
                while (
                    self._drops
                    and self._drops[0][0] <= loop.time()
                    and len(ids) < _MESSAGES_PER_REMOVAL
                ):
                    ids.append(self._drops.popleft()[1])
                try:
                    drop = partial(Enqueue(self._links[0]).drop_chunks, ids)
                    await self._outage.outlast(drop)
                except (StoreUnavailable, psycopg.Error) as error:
                    log.warning("chunks of messages stay behind", ids=ids, reason=str(error))
        finally:
            self._dropping = None

    def purge(self) -> None:
        """Forget the octets of dead parts."""
        for part in self._waiting.remove(lambda part: part.dead):
            part.answer(StoreUnavailable("the content was given up"))

    def _take(self) -> list[Part]:
        self.purge()
        group: list[Part] = []
        octets = 0
        while octets < PART_OCTETS and (part := self._waiting.take()):
            group.append(part)
            octets += len(part.octets)
        return group

    async def _run(self, store: Enqueue) -> None:
        while True:
            await self._work.wait()
            await self._outage.wait()
            group = self._take()
            if not group:
                self._work.clear()
                continue
            began, small = time.monotonic(), self.small
            error = await self._write(store, group)
            whole = any(part.whole for part in group)
            rest = _REST_FACTOR if whole else _REST_FACTOR_AHEAD
            for part in group:
                part.answer(error)
                if part.content.state is State.DISCARDED:
                    self.drop_chunks(part.content)
            del group, part  # otherwise the content would stay in memory until the next group
            if self.small != small:
                began = max(began, self._outage.ended_at)  # waiting for its end was no work
                await asyncio.sleep(rest * (time.monotonic() - began))

    async def _write(self, store: Enqueue, group: list[Part]) -> Exception | None:
        contents = [part.content for part in group]
        lost: list[Backend] = []

        async def write() -> None:
            if lost and await store.has_chunks(contents[0].id, contents[0].chunks, lost):
                return
            try:
                await store.chunks(
                    (c.id, c.chunks, p.octets) for c, p in zip(contents, group, strict=True)
                )
            except AnswerLost as error:
                lost.append(error.backend)
                raise

        self._writing.update(contents)
        try:
            await self._outage.outlast(write)
        except Exception as error:  # whatever it is, no content that lacks a chunk gets 250
            log.warning("can't store content", parts=len(group), reason=str(error))
            return error
        finally:
            self._writing.difference_update(contents)
        return None
