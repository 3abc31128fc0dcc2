"""Group commit: while one commit is under way, the messages of all sessions gather for the next."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from pgmta.config.ingest import Ingest
from pgmta.errors import StoreUnavailable, Undecided
from pgmta.intake.pieces import Part, Pieces, Told, tell
from pgmta.logs import get
from pgmta.model import CHUNK_SIZE, PART_SIZE, NewMessage
from pgmta.postgres.link import Link
from pgmta.store.daemons import Heartbeat
from pgmta.store.enqueue import BLOCK, Enqueue, pieces
from pgmta.store.schema import Schema

log = get("ingest")

_LOW = BLOCK // 2  # ids left when the next block is fetched
_LARGE = PART_SIZE // CHUNK_SIZE  # pieces of a message that is better waited for than sent again
_LONGER = 4  # times as long
_LOOK = 0.25  # seconds between two looks at how long commits take
_SETTINGS = {"jit": "off", "plan_cache_mode": "force_generic_plan"}
_PATIENCE = 420.0
"""Seconds until a client is answered whose message's commit is under way.

A client waits ten minutes for the reply to the final dot (RFC 5321, section 4.5.3.2.6). Two of them
may have gone by until its content was stored.
"""


class Ids:
    """Message ids from the database's sequence, a block ahead."""

    def __init__(self, store: Enqueue) -> None:
        self._store = store
        self._ready: deque[int] = deque()
        self._lock = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    def ready(self) -> int:
        """Return an id nobody else has, 0 where `take` has to fetch some first."""
        if not self._ready:
            return 0
        if len(self._ready) < _LOW and not self._ahead:
            self._ahead = asyncio.create_task(self._fill_ahead())
        return self._ready.popleft()

    async def take(self) -> int:
        """Return an id nobody else has. Raises StoreUnavailable."""
        while not (found := self.ready()):
            await self._fill(1)
        return found

    async def _fill(self, least: int) -> None:
        async with self._lock:
            if len(self._ready) < least:
                self._ready.extend(await self._store.block())

    async def _fill_ahead(self) -> None:
        try:
            await self._fill(_LOW)
        except (StoreUnavailable, psycopg.Error):
            pass  # whoever needs the next block will be told
        finally:
            self._ahead = None


@dataclass(slots=True, eq=False)
class Waiting:
    """A message on its way into the database; `over` where nobody waits for it any more.

    `told` says that its client was told 451 while the commit was under way.
    """

    message: NewMessage
    done: Told
    since: float = field(default_factory=time.monotonic)
    over: bool = False
    told: bool = False

    @property
    def large(self) -> bool:
        """Whether its client would have much to send again."""
        return self.message.chunks > _LARGE

    def end(self, error: Exception | None) -> None:
        """Tell whoever waits, once."""
        if not self.over:
            self.over = True
            self.done(error)


class Committer:
    """Takes accepted messages and tells when they are durable."""

    def __init__(self, uri: str, config: Ingest, committed: Callable[[], None]) -> None:
        self._config = config
        self._committed = committed
        # The server ends a statement that takes longer, and says that nothing of it stays. The
        # commit itself has no limit: nobody could say then what became of it.
        limit, longer = _limit(config.wait), _limit(config.wait * _LONGER)
        self._links = [
            Link(uri, f"smtpd {number}", _SETTINGS | limit) for number in range(config.connections)
        ]
        self._large = Link(uri, "smtpd large", _SETTINGS | longer)  # not connected until needed
        self._side = Link(uri, "smtpd side")
        self.pieces = Pieces(uri)
        self._storing: set[Waiting] = set()
        self._pending: deque[Waiting] = deque()
        self._writing: list[list[Waiting]] = []
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._away = False
        self.schema = Schema()
        self.ids = Ids(Enqueue(self._side, self.schema))

    def heartbeat(self, host: str) -> Heartbeat:
        """That of this process; it learns the schema for all that is written here."""
        process = f"{host}:{os.getpid()}:{secrets.token_hex(3)}"
        return Heartbeat(self._side, self.schema, process, "smtpd", host)

    def start(self) -> None:
        """Begin to write."""
        self.pieces.start()
        self._tasks = [
            asyncio.create_task(self._run(Enqueue(link, self.schema))) for link in self._links
        ]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """Close the connections. Call it when no session waits for a commit any more."""
        for group in self._writing:
            self._leave_open(group, "smtpd stops")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pieces.stop()
        for link in (*self._links, self._large, self._side):
            await link.close()

    def commit(self, message: NewMessage, done: Told) -> Waiting:
        """Write the message; `done` is called with None when it is durable, else with the error.

        That is StoreUnavailable where PostgreSQL is away or takes longer than `ingest.wait`. A
        message that was not yet on its way by then is forgotten, as is one that is `over`. It is
        Undecided where nobody could find out in time what became of the commit.
        """
        waiting = Waiting(message, done)
        if len(message.body) > CHUNK_SIZE:
            self._store(waiting)
        else:
            self._hand_over(waiting)
        return waiting

    def _hand_over(self, waiting: Waiting) -> None:
        self._pending.append(waiting)
        self._work.set()

    def _store(self, waiting: Waiting) -> None:
        """Write the content of a message that is too large for its row, then the message."""
        message = waiting.message

        def stored(error: Exception | None) -> None:
            self._storing.discard(waiting)
            message.chunks = pieces(len(message.body))
            message.body = b""
            if not error and not waiting.over:
                self._hand_over(waiting)
                return
            if part.begun:
                self.pieces.drop(message.id)
            if error:
                waiting.end(error)

        self._storing.add(waiting)
        part = Part(message.id, 0, message.body, stored, lambda: waiting.over, whole=True)
        self.pieces.put(part)

    def _forget(self, waiting: Waiting) -> None:
        """A message was never sent to the database, and will not be: neither shall its content."""
        if waiting.message.chunks:
            self.pieces.drop(waiting.message.id)

    def _take(self) -> list[Waiting]:
        group: list[Waiting] = []
        octets = 0
        while self._pending and len(group) < self._config.group:
            waiting = self._pending[0]
            octets += len(waiting.message.body)
            if group and octets > self._config.octets:
                break
            self._pending.popleft()
            if waiting.over:  # its session is gone or has been told 451
                self._forget(waiting)
            else:
                group.append(waiting)
        return group

    async def _run(self, store: Enqueue) -> None:
        while True:
            await self._work.wait()
            group = self._take()
            if not group:
                self._work.clear()
                continue
            self._writing.append(group)
            try:
                await self._write(store, group)
            finally:
                self._writing.remove(group)
                del group  # or its content would stay until the next one

    async def _watch(self) -> None:
        """Tell sessions whose message waits too long, without a timer for each."""
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            error = StoreUnavailable("the commit takes too long")
            self._give_up(error, now)
            self._answer([w for w in self._storing if w.since < now - self._config.wait], error)
            for group in self._writing:
                # what is on its way may be committed: no 451 as long as the client waits
                late = [w for w in group if w.since < now - _PATIENCE and not w.over]
                self._leave_open(late, "the commit takes too long")
                self._answer(late, Undecided("the commit takes too long"))
            self.pieces.purge()

    def _give_up(self, error: StoreUnavailable, now: float = math.inf) -> None:
        """Answer those whose time is over, without `now` all, if they are not on their way yet."""
        wait = self._config.wait
        late = [w for w in self._pending if now - w.since > wait * (_LONGER if w.large else 1)]
        if late:
            gone = set(map(id, late))
            self._pending = deque(w for w in self._pending if id(w) not in gone)
        for waiting in late:
            self._forget(waiting)
        self._answer(late, error)

    async def _write(self, store: Enqueue, group: list[Waiting]) -> None:
        if any(waiting.large for waiting in group):
            store = Enqueue(self._large, self.schema)
        try:
            await store.commit([waiting.message for waiting in group], _PATIENCE, self._look_failed)
        except Undecided as error:
            self._leave_open(group, str(error))
            self._answer(group, error)
        except StoreUnavailable as error:
            self._tell_away(error)
            self._refuse(group, error)
        except Exception as error:  # not only psycopg.Error: what can't be encoded, for one
            if len(group) > 1:
                # one message that PostgreSQL refuses must not refuse the others
                while group:
                    if not group[0].over:
                        await self._write(store, group[:1])
                    del group[0]  # what became of it is known
                return
            log.error("message refused by the database", id=group[0].message.id, reason=str(error))
            self._refuse(group, error)
        else:
            if self._away:
                log.info("database is back")
            self._away = False
            self.pieces.small += sum(not waiting.message.chunks for waiting in group)
            for waiting in group:
                if waiting.told:
                    log.warning("message is in the queue, and its client was told 451",
                                id=waiting.message.id)  # fmt: skip
            # PostgreSQL gets the next group first, and works while these are answered
            asyncio.get_running_loop().call_soon(self._answer, group, None)
            self._committed()

    def _look_failed(self, error: StoreUnavailable) -> None:
        """It is open what became of a commit, and nobody can say it now: others need not wait."""
        self._tell_away(error)
        self._give_up(error)

    def _tell_away(self, error: StoreUnavailable) -> None:
        if not self._away:
            log.warning("database is away", reason=str(error))
        self._away = True

    def _refuse(self, group: list[Waiting], error: Exception) -> None:
        """Nothing of these messages is stored."""
        for waiting in group:
            self._forget(waiting)
        self._answer(group, error)

    @staticmethod
    def _leave_open(group: list[Waiting], reason: str) -> None:
        """Say of each message that it may be in the queue, though no client was told 250."""
        for waiting in group:
            if not waiting.told:
                waiting.told = True
                log.warning("message may be in the queue, and its client was not told 250",
                            id=waiting.message.id, sender=waiting.message.sender,
                            recipients=len(waiting.message.recipients), reason=reason)  # fmt: skip

    @staticmethod
    def _answer(group: list[Waiting], error: Exception | None) -> None:
        tell(((waiting.message.id, waiting.end) for waiting in group), error)


def _limit(seconds: float) -> dict[str, str]:
    """The setting that has PostgreSQL end a statement after that time: a positive int4."""
    return {"statement_timeout": f"{max(1, min(round(seconds * 1000), 2**31 - 1))}ms"}
