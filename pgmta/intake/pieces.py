"""Content on its way into the database ahead of its message, that of all sessions together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import PART_SIZE
from pgmta.postgres.link import Link
from pgmta.store.enqueue import Enqueue
from pgmta.turns import Line

log = get("pieces")

_LINKS = 2
_PATIENCE = 5.0  # seconds that a part lets older messages go first, and its client waits
# Content has to be durable with its message and no sooner: the commit of that comes later in the
# same WAL, so its sync covers the content.
_SETTINGS = {"synchronous_commit": "off"}
_FIRST = -1  # before the id of any message
# Times as long as a write, while small messages are committed too: after one with whole messages,
# and after one ahead of messages of which nobody knows whether they come to an end.
_REST, _REST_AHEAD = 4, 9
_AT_ONCE = 50  # messages whose pieces are removed by one statement
_LET_END = 1.0  # seconds that a write whose connection broke has to end in the server


Told = Callable[[Exception | None], None]


def tell(whom: Iterable[tuple[int, Told]], error: Exception | None) -> None:
    """Call all of them, each with the id of its message; one that fails keeps it from no other."""
    for message_id, told in whom:
        try:
            told(error)
        except Exception as fault:
            log.error("a session failed when it was told", id=message_id, exc_info=fault)


@dataclass(slots=True)
class Part:
    """Some pieces of one message, the first of them at `position`.

    One that nobody waits for any more (`over`) is not written; `begun` says whether it may be, and
    `whole` that it is all of its message.
    """

    message_id: int
    position: int
    content: bytes
    done: Told
    over: Callable[[], bool]
    whole: bool = False
    begun: bool = False

    def end(self, error: Exception | None) -> None:
        """Tell whoever waits; the content goes at once, as part and callback know each other."""
        self.content = b""
        self.done(error)


class Pieces:
    """Writes parts over a few connections: each takes what has gathered, some 0.5 MB at a time.

    A whole message goes first, and of the others the oldest. So messages are complete one after the
    other and not all at the same time, and less content stands in the database that can't be sent
    yet. The clients of the others wait, as nothing more is read from them; whatever has waited for
    5 s goes before all (pgmta.turns).

    What is written before a crash and never gets its message is removed as an orphan.
    """

    def __init__(self, uri: str) -> None:
        self._links = [Link(uri, f"smtpd pieces {n}", _SETTINGS) for n in range(_LINKS)]
        self._waiting: Line[Part] = Line(_PATIENCE)
        self._writing: set[int] = set()  # messages with a part under way, each with one at most
        self._doomed: set[int] = set()  # those of them to be removed afterwards
        self._work = asyncio.Event()
        self.small = 0
        """Messages without pieces that have been committed: they are not to wait for content."""
        self._tasks: list[asyncio.Task[None]] = []
        self._drops: deque[tuple[float, int]] = deque()  # when, by the loop's clock, and what
        self._dropping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._tasks = [asyncio.create_task(self._run(Enqueue(link))) for link in self._links]

    async def stop(self) -> None:
        """Remove what is to be removed, close the connections."""
        tasks = list(self._tasks)
        if dropping := self._dropping:
            await asyncio.wait([dropping], timeout=5)
            tasks.append(dropping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links:
            await link.close()

    def put(self, part: Part) -> None:
        """Write it, and tell `part.done` of the end: StoreUnavailable leaves open what is there."""
        self._waiting.put(_FIRST if part.whole else part.message_id, part)
        self._work.set()

    async def write(self, message_id: int, position: int, content: bytes) -> None:
        """Write a part and wait for it. Raises StoreUnavailable, psycopg.Error."""
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not end.done():  # else whoever waited has gone
                end.set_result(error)

        self.put(Part(message_id, position, content, done, end.done))
        if error := await end:
            raise error

    def drop(self, message_id: int) -> None:
        """Remove the pieces of a message that is not accepted, after what is under way of it."""
        if message_id in self._writing:
            self._doomed.add(message_id)
            return
        loop = asyncio.get_running_loop()
        self._drops.append((loop.time() + _LET_END, message_id))
        if not self._dropping:
            self._dropping = loop.create_task(self._drop())

    async def _drop(self) -> None:
        """Remove what is to be removed, many messages in a statement."""
        loop = asyncio.get_running_loop()
        try:
            while self._drops:
                await asyncio.sleep(self._drops[0][0] - loop.time())
                ids: list[int] = []
                while self._drops and self._drops[0][0] <= loop.time() and len(ids) < _AT_ONCE:
                    ids.append(self._drops.popleft()[1])
                try:
                    await Enqueue(self._links[0]).drop_chunks(ids)
                except (StoreUnavailable, psycopg.Error) as error:
                    log.warning("pieces of messages stay behind", ids=ids, reason=str(error))
        finally:
            self._dropping = None

    def purge(self) -> None:
        """Forget the content of parts that nobody waits for any more."""
        if dead := self._waiting.leave(lambda part: part.over()):
            self._end(dead, StoreUnavailable("nobody waits for it"))

    def _take(self) -> list[Part]:
        self.purge()
        group: list[Part] = []
        octets = 0
        while octets < PART_SIZE and (part := self._waiting.take()):
            part.begun = True
            group.append(part)
            octets += len(part.content)
        return group

    @staticmethod
    def _end(group: list[Part], error: Exception | None) -> None:
        tell(((part.message_id, part.end) for part in group), error)

    async def _run(self, store: Enqueue) -> None:
        while True:
            await self._work.wait()
            group = self._take()
            if not group:
                self._work.clear()
                continue
            error: Exception | None = None
            began, small = time.monotonic(), self.small
            ids = [part.message_id for part in group]
            self._writing.update(ids)
            try:
                await store.chunks((p.message_id, p.position, p.content) for p in group)
            except Exception as problem:  # whatever it is: no 250 for what lacks a piece
                log.warning("can't store content", parts=len(group), reason=str(problem))
                error = problem
            finally:
                self._writing.difference_update(ids)
            rest = _REST if any(part.whole for part in group) else _REST_AHEAD
            self._end(group, error)
            for message_id in self._doomed.intersection(ids):
                self._doomed.remove(message_id)
                self.drop(message_id)
            del group  # or the content would stay until the next one
            if self.small != small:
                await asyncio.sleep(rest * (time.monotonic() - began))
