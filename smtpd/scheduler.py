"""Turns for the sessions whose clients send more than can be done at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

_SHARE = 4  # others get so many times the time of such sessions, while there are others
_LEAST = 0.001  # seconds, what the event loop's timers can tell


class Busy(Protocol):
    """A session that has more to do."""

    def turn(self) -> None:
        """Do some of it."""


class Scheduler:
    """One turn in each round of the event loop, one session after the other.

    While other sessions are served too, the turns pause, so that they take at most a fifth of the
    time of the process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Busy] = deque()
        self._handle: asyncio.Handle | None = None
        self._owed = 0.0  # seconds that belong to the others
        self._seen = 0
        self.others = 0  # how often a session was served without a turn

    def add(self, session: Busy) -> None:
        """Give the session a turn."""
        self._waiting.append(session)
        if not self._handle:
            self._next()

    def _next(self) -> None:
        if self._owed >= _LEAST:
            self._handle = self._loop.call_later(self._owed, self._turn)
            self._owed = 0.0
        else:
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        began = time.perf_counter()
        session = self._waiting.popleft()
        session.turn()
        if self.others != self._seen:
            self._seen = self.others
            self._owed += _SHARE * (time.perf_counter() - began)
        if self._waiting and not self._handle:
            self._next()
