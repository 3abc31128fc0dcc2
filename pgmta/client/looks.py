"""Looks at the state of mail, shared by all callers that wait for its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from pgmta.client.parcels import CLOSED_REASON
from pgmta.client.results import Statuses
from pgmta.errors import NotBegun

_FIRST_PAUSE_S, _MAX_PAUSE_S, _PAUSE_FACTOR = 0.02, 1.0, 1.5  # between two looks
_REST_FACTOR: Final = 9  # pauses last so many times as long as a look, to spare a busy server


class _Wait:
    """A caller, the ids that it waits for, and those of them that are not over."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.found: Statuses = {number: [] for number in ids}
        self.left = set(ids)
        self.looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def learn(self, found: Statuses) -> None:
        """Note the answer of a look that asked for the ids."""
        for number in tuple(self.left):
            rows = self.found[number] = found[number]
            if all(row.over for row in rows):
                self.left.discard(number)
        if not self.looked.done():
            self.looked.set_result(None)
        if not self.left and not self.over.done():
            self.over.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        for future in (self.looked, self.over):
            if not future.done():
                future.set_exception(error)
                future.exception()  # read, because perhaps nobody awaits it


class Looks:
    """Asks PostgreSQL for all mail that is waited for, by one question at a time.

    The pause between two looks rises from 20 ms to 1 s. A new caller sets it to 20 ms again. Looks
    take at most a tenth of the time, so to wait for much mail is no load.
    """

    def __init__(self, ask: Callable[[Sequence[int]], Awaitable[Statuses]]) -> None:
        self._ask = ask
        self._waits: set[_Wait] = set()
        self._new = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, ids: Sequence[int], timeout: float | None) -> Statuses:
        """Return the states once all mail is over, or at the timeout (seconds), after one look.

        Raises the errors of the question.
        """
        wait = _Wait(ids)
        self._waits.add(wait)
        self._new.set()
        if not self._task or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.shield(wait.over)
            await wait.looked
            return wait.found
        finally:
            self._waits.discard(wait)

    async def close(self) -> None:
        """End all waits: they return what the last look has found, or raise NotBegun."""
        for wait in self._waits:
            if not wait.looked.done():
                wait.fail(NotBegun(CLOSED_REASON))
            elif not wait.over.done():
                wait.over.set_result(None)
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while self._waits:
            if self._new.is_set():
                self._new.clear()
                pause = _FIRST_PAUSE_S
            waits = list(self._waits)
            began = time.monotonic()
            try:
                statuses = await self._ask(sorted(set().union(*(wait.left for wait in waits))))
            except Exception as error:
                for wait in waits:
                    wait.fail(error)
                    self._waits.discard(wait)
                continue
            for wait in waits:
                wait.learn(statuses)
                if not wait.left:
                    self._waits.discard(wait)
            now = time.monotonic()
            with suppress(TimeoutError):  # a new caller shortens the pause
                async with asyncio.timeout(pause):
                    await self._new.wait()
            await asyncio.sleep(
                max(_REST_FACTOR * (now - began), _FIRST_PAUSE_S) - (time.monotonic() - now)
            )
            pause = min(pause * _PAUSE_FACTOR, _MAX_PAUSE_S)
