"""An order of service: by number, but nothing waits for longer than a patience."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

_PATIENCE_S = 1.0


@dataclass(slots=True, eq=False)
class _Entry[T]:
    item: T
    since: float
    removed: bool = False


class AgingQueue[T]:
    """A queue whose lowest number goes first, unless an entry has waited longer than `patience`.

    So the work that began first is done first, and no entry is overtaken for ever.
    """

    def __init__(
        self, patience: float = _PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._lowest: list[tuple[int, int, _Entry[T]]] = []  # a heap
        self._oldest: deque[_Entry[T]] = deque()
        self._count = 0

    def put(self, number: int, item: T) -> None:
        """Add an item; among equal numbers the first goes first."""
        entry = _Entry(item, self._clock())
        self._count += 1
        heapq.heappush(self._lowest, (number, self._count, entry))
        self._oldest.append(entry)

    def take(self) -> T | None:
        """Return and remove the next item, None if the queue is empty."""
        self._drop_removed()
        if not self._oldest:
            return None
        entry = self._oldest[0]
        if self._clock() - entry.since < self._patience:
            entry = self._lowest[0][2]
        entry.removed = True
        return entry.item

    def remove(self, which: Callable[[T], bool]) -> list[T]:
        """Remove every item that `which` selects, and return them."""
        gone = [entry for entry in self._oldest if not entry.removed and which(entry.item)]
        for entry in gone:
            entry.removed = True
        return [entry.item for entry in gone]

    def _drop_removed(self) -> None:
        while self._oldest and self._oldest[0].removed:
            self._oldest.popleft()
        while self._lowest and self._lowest[0][2].removed:
            heapq.heappop(self._lowest)


class PriorityLock:
    """A lock that goes to the next entry of an AgingQueue."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: AgingQueue[asyncio.Future[None]] = AgingQueue()

    @asynccontextmanager
    async def hold(self, number: int) -> AsyncIterator[None]:
        """Wait for the lock under this number, and hold it."""
        if self._taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.put(number, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        while turn := self._waiting.take():
            if not turn.done():
                turn.set_result(None)  # handed over, so it stays taken
                return
        self._taken = False
