"""Turns for the sessions whose clients send more than can be done at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from smtpd.server.memory import Memory

# A pause lasts at most so many times as long as the turn before it, and as the work for others.
_COMMAND_PAUSE_FACTORS = (4, 1000)
_CONTENT_PAUSE_FACTORS = (12, 16)
_MAX_OTHERS_S = 0.05  # work for others is remembered up to this time
_SCARCE_PAUSE_S = 0.01  # between two turns of content, while memory is used up
_TIMER_RESOLUTION_S = 0.001  # a shorter pause is added to the next one
_MAX_ROUND_S = 0.003  # for content in one round of the event loop
_BULK_WORK_S = 5e-5  # counts as work for others, in place of all the time for a large input
_FLOOD_S = 0.5  # after a round that took too long, content is read in turns for this time


type Turn = Callable[[], None]
"""Does some of what a session has to do."""


class Scheduler:
    """Two lines of sessions, one of content and one of commands; each gives turns one by one.

    In each round of the event loop a line gives one turn. While others are served, floods of
    commands get a fifth of the time, and content gets a thirteenth. The pauses of content are no
    longer than the work for others asks for: a few small mails slow a large one only a little.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: Memory) -> None:
        self.memory = memory
        self.spent = 0.0
        """Seconds of work, in a turn or without one."""
        self._loop = loop
        self._content = _Queue(loop, self, *_CONTENT_PAUSE_FACTORS, uses_memory=True)
        self._commands = _Queue(loop, self, *_COMMAND_PAUSE_FACTORS)
        self._counted = False  # a large input has been read in this round
        self._swept = False  # all sessions were looked at in this round
        self.bulk = 0.0
        """Seconds of work on large input in this round of the event loop."""
        self._flood = 0.0  # time until which content is read in turns

    def count(self, seconds: float, *, large: bool) -> None:
        """Count seconds of work, in a turn or without one; `large` is that on much input."""
        if large:
            self.bulk += seconds
            seconds = _BULK_WORK_S
        self.spent += seconds

    def add_turn(self, turn: Turn, *, content: bool) -> None:
        """Let a session have a turn."""
        (self._content if content else self._commands).add(turn)

    def during(self, work: Turn) -> None:
        """Do work on content that has been read in a turn: it counts as a part of the turn."""
        self._content.do(work)

    def flooded(self, seconds: float) -> bool:
        """Count the seconds of a large read; True while others wait, or waited, for too many."""
        now = self._loop.time()
        if not self._counted:
            self._counted = True
            self.bulk = 0.0
            self._loop.call_soon(self._end_round)  # uvloop's clock may advance during a round
        self.bulk += seconds
        if self.bulk > _MAX_ROUND_S:
            self._flood = now + _FLOOD_S
        return now < self._flood

    def sweep(self) -> bool:
        """Return whether to look at all sessions: once in a round that takes too long."""
        if self._swept or self.bulk <= _MAX_ROUND_S:
            return False
        self._swept = True
        return True

    def _end_round(self) -> None:
        self._counted = self._swept = False


class _Queue:
    """Sessions that wait for their turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scheduler: Scheduler,
        turn_factor: float,
        others_factor: float,
        *,
        uses_memory: bool = False,
    ) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._turn_factor = turn_factor
        self._others_factor = others_factor
        self._uses_memory = uses_memory
        self._waiting: deque[Turn] = deque()
        self._handle: asyncio.Handle | None = None
        self._owed = 0.0  # seconds of pauses that are due
        self._others = 0.0  # seconds of work for others that no pause was made for
        self._before = 0.0  # the scheduler's seconds of work when the last turn ended

    def add(self, turn: Turn) -> None:
        self._waiting.append(turn)
        if not self._handle:
            self._next()

    def _next(self) -> None:
        if self._uses_memory and self._scheduler.memory.over:
            # after a while, because these contents may be too small to be written ahead
            self._handle = self._loop.call_later(_SCARCE_PAUSE_S, self._turn)
        elif self._owed >= _TIMER_RESOLUTION_S:
            self._handle = self._loop.call_later(self._owed, self._turn)
            self._owed = 0.0
        else:
            self._handle = self._loop.call_soon(self._turn)

    def do(self, work: Turn) -> None:
        others = self._others + self._scheduler.spent - self._before
        began = time.perf_counter()
        work()
        pause = min(self._turn_factor * (time.perf_counter() - began), self._others_factor * others)
        self._owed += pause
        self._others = min(others - pause / self._others_factor, _MAX_OTHERS_S)
        self._before = self._scheduler.spent

    def _turn(self) -> None:
        if self._uses_memory and self._scheduler.memory.stuck:
            self._handle = self._loop.call_later(_SCARCE_PAUSE_S, self._turn)
            return
        self._handle = None
        self.do(self._waiting.popleft())
        if self._waiting and not self._handle:
            self._next()
