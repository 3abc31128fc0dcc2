"""Who goes first among those that wait for the same thing."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

_PATIENCE = 1.0  # seconds


@dataclass(slots=True, eq=False)
class _Place[T]:
    item: T
    since: float
    left: bool = False


class Line[T]:
    """The lowest number goes first, unless somebody has waited for longer than `patience` seconds.

    So what began first is done first, and yet nobody is overtaken for ever.
    """

    def __init__(
        self, patience: float = _PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._lowest: list[tuple[int, int, _Place[T]]] = []  # a heap
        self._longest: deque[_Place[T]] = deque()
        self._came = 0

    def put(self, number: int, item: T) -> None:
        """Wait in line; among the same numbers the first goes first."""
        place = _Place(item, self._clock())
        self._came += 1
        heapq.heappush(self._lowest, (number, self._came, place))
        self._longest.append(place)

    def take(self) -> T | None:
        """Who is next, None if nobody waits."""
        self._tidy()
        if not self._longest:
            return None
        place = self._longest[0]
        if self._clock() - place.since < self._patience:
            place = self._lowest[0][2]
        place.left = True
        return place.item

    def leave(self, which: Callable[[T], bool]) -> list[T]:
        """Have all of those leave the line, and return them."""
        gone = [place for place in self._longest if not place.left and which(place.item)]
        for place in gone:
            place.left = True
        return [place.item for place in gone]

    def _tidy(self) -> None:
        while self._longest and self._longest[0].left:
            self._longest.popleft()
        while self._lowest and self._lowest[0][2].left:
            heapq.heappop(self._lowest)


class Turns:
    """A lock that goes to whoever is next in line."""

    def __init__(self) -> None:
        self._taken = False
        self._line: Line[asyncio.Future[None]] = Line()

    @asynccontextmanager
    async def of(self, number: int) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        if self._taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.put(number, turn)
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
        while turn := self._line.take():
            if not turn.done():
                turn.set_result(None)  # it stays taken
                return
        self._taken = False
