"""Group commit: while one commit is under way, the messages of all sessions gather for the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import psycopg

from queued.db import Link
from queued.errors import StoreUnavailable
from queued.logs import get
from queued.model import NewMessage
from queued.store.enqueue import BLOCK, Enqueue
from smtpd.config import Ingest

log = get("ingest")

_Waiting = tuple[NewMessage, asyncio.Future[None]]
_SETTINGS = {"jit": "off", "plan_cache_mode": "force_generic_plan"}


class Ids:
    """Message ids from the database's sequence, a block ahead."""

    def __init__(self, store: Enqueue) -> None:
        self._store = store
        self._ready: deque[int] = deque()
        self._lock = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """Return an id nobody else has. Raises StoreUnavailable."""
        if not self._ready:
            await self._fill(1)
        elif len(self._ready) < BLOCK // 2 and not self._ahead:
            self._ahead = asyncio.create_task(self._fill_ahead())
        return self._ready.popleft()

    async def _fill(self, least: int) -> None:
        async with self._lock:
            if len(self._ready) < least:
                self._ready.extend(await self._store.block())

    async def _fill_ahead(self) -> None:
        try:
            await self._fill(BLOCK // 2)
        except (StoreUnavailable, psycopg.Error):
            pass  # whoever needs the next block will be told
        finally:
            self._ahead = None


class Committer:
    """Takes accepted messages and returns when they are durable."""

    def __init__(self, uri: str, config: Ingest, committed: Callable[[], None]) -> None:
        self._config = config
        self._committed = committed
        self._links = [
            Link(uri, f"smtpd {number}", _SETTINGS) for number in range(config.connections)
        ]
        self._side = Link(uri, "smtpd side")
        self._pending: deque[_Waiting] = deque()
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._away = False
        self.store = Enqueue(self._side)
        self.ids = Ids(self.store)

    def start(self) -> None:
        """Begin to write."""
        self._tasks = [asyncio.create_task(self._run(Enqueue(link))) for link in self._links]

    async def stop(self) -> None:
        """Close the connections. Call it when no session waits for a commit any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in (*self._links, self._side):
            await link.close()

    async def commit(self, message: NewMessage) -> None:
        """Return when the message is durable.

        Raises StoreUnavailable where PostgreSQL is away or takes longer than `ingest.wait`; a
        message that was not yet on its way by then is forgotten.
        """
        future = asyncio.get_running_loop().create_future()
        self._pending.append((message, future))
        self._work.set()
        try:
            async with asyncio.timeout(self._config.wait):
                await future
        except TimeoutError:
            raise StoreUnavailable("the commit takes too long") from None

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        octets = 0
        while self._pending and len(group) < self._config.group:
            message, future = self._pending[0]
            octets += len(message.body)
            if group and octets > self._config.octets:
                break
            self._pending.popleft()
            if not future.done():  # its session is gone or has been told 451
                group.append((message, future))
        return group

    async def _run(self, store: Enqueue) -> None:
        while True:
            await self._work.wait()
            group = self._take()
            if not group:
                self._work.clear()
                continue
            await self._write(store, group)

    async def _write(self, store: Enqueue, group: list[_Waiting]) -> None:
        try:
            await store.commit([message for message, _ in group])
        except StoreUnavailable as error:
            if not self._away:
                log.warning("database is away", reason=str(error))
            self._away = True
            self._answer(group, error)
        except psycopg.Error as error:
            if len(group) > 1:
                # one message that PostgreSQL refuses must not refuse the others
                for waiting in group:
                    await self._write(store, [waiting])
                return
            log.error("message refused by the database", id=group[0][0].id, reason=str(error))
            self._answer(group, error)
        else:
            if self._away:
                log.info("database is back")
            self._away = False
            self._answer(group, None)
            self._committed()

    @staticmethod
    def _answer(group: list[_Waiting], error: Exception | None) -> None:
        for _, future in group:
            if future.done():
                continue
            if error:
                future.set_exception(error)
            else:
                future.set_result(None)
