"""Turns for the sessions whose clients send more than can be done at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

from smtpd.memory import Memory

_PAUSE = 4  # times as long as a turn, while others are served too
_SCARCE = 0.01  # seconds between two turns of content, while memory is used up
_LEAST = 0.001  # seconds, what the event loop's timers can tell


class Busy(Protocol):
    """A session that has more to do."""

    def turn(self) -> None:
        """Do some of it."""


class Scheduler:
    """One turn in each round of the event loop, one session after the other.

    Sessions that are in their content need nothing more to leave room for others. Those that send
    commands without end bring no mail: while others are served, pauses keep them to a fifth of the
    time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: Memory) -> None:
        self.memory = memory
        self._content = _Queue(loop, self, pause=0)
        self._commands = _Queue(loop, self, pause=_PAUSE)
        self.served = 0  # how often sessions were served, in their turn or without one

    def add(self, session: Busy, *, content: bool) -> None:
        """Give the session a turn."""
        (self._content if content else self._commands).add(session)


class _Queue:
    """Sessions that wait for their turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scheduler: Scheduler, pause: int) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._pause = pause
        self._waiting: deque[Busy] = deque()
        self._handle: asyncio.Handle | None = None
        self._owed = 0.0  # seconds that belong to others
        self._before = 0  # how often sessions had been served when the last turn ended

    def add(self, session: Busy) -> None:
        self._waiting.append(session)
        if not self._handle:
            self._next()

    def _next(self) -> None:
        if not self._pause and self._scheduler.memory.over:
            # not for ever: what is held may be too little to be written ahead
            self._handle = self._loop.call_later(_SCARCE, self._turn)
        elif self._owed >= _LEAST:
            self._handle = self._loop.call_later(self._owed, self._turn)
            self._owed = 0.0
        else:
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        alone = self._scheduler.served == self._before
        began = time.perf_counter()
        self._waiting.popleft().turn()
        if not alone:
            self._owed += self._pause * (time.perf_counter() - began)
        self._before = self._scheduler.served
        if self._waiting and not self._handle:
            self._next()
