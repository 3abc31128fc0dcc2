"""Turns: who sends much leaves room for others, and only while there are any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest

from smtpd.server.memory import Memory
from smtpd.server.scheduler import Scheduler


class Loop:
    """An event loop of which each round, and the time, are the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        """The time of the round."""
        return self.now

    def call_soon(self, work: Callable[[], None]) -> object:
        """Do it in the next round."""
        return self.call_later(0.0, work)

    def call_later(self, seconds: float, work: Callable[[], None]) -> object:
        """Do it in the first round after so long."""
        self.due.append((self.now + seconds, work))
        return object()

    def next(self) -> None:
        """Go on to the work that is due first."""
        self.now, work = min(self.due, key=lambda each: each[0])
        self.due.remove((self.now, work))
        work()


class Session:
    """Comes again and again, with the same work in each turn."""

    def __init__(self, scheduler: Scheduler, seconds: float, *, content: bool) -> None:
        self.scheduler, self.seconds, self.content = scheduler, seconds, content
        self.turns = 0

    def turn(self) -> None:
        """Work, and wait for the next turn."""
        self.turns += 1
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        self.scheduler.add_turn(self.turn, content=self.content)


def _scheduler(budget: int = 1 << 30) -> tuple[Loop, Scheduler]:
    loop = Loop()
    real = cast(asyncio.AbstractEventLoop, loop)
    return loop, Scheduler(real, Memory(budget))


def _turns(*, content: bool, others: float) -> tuple[float, list[int]]:
    """The loop's seconds for 40 turns of two sessions, beside others' work in each round."""
    loop, scheduler = _scheduler()
    sessions = [Session(scheduler, 0.002, content=content) for _ in range(2)]
    for session in sessions:
        scheduler.add_turn(session.turn, content=content)
    while sum(session.turns for session in sessions) < 40:
        scheduler.spent += others
        loop.next()
    return loop.now, [session.turns for session in sessions]


def test_turns_leave_room_for_others_and_only_for_them() -> None:
    for content in (False, True):
        seconds, turns = _turns(content=content, others=0.0)
        assert seconds == 0.0  # no other session: one turn per round, without a pause
        assert turns == [20, 20]
    assert _turns(content=False, others=0.001)[0] >= 30 * 0.002 * 4
    assert _turns(content=True, others=0.01)[0] >= 30 * 0.002 * 12
    few, _ = _turns(content=True, others=0.0001)  # a few small mails slow a large one only a little
    assert 0.0 < few <= 40 * 0.0001 * 16


def test_work_for_others_is_remembered_for_later_pauses() -> None:
    loop, scheduler = _scheduler()
    scheduler.spent = 0.01  # once, for as much as many turns
    scheduler.add_turn(Session(scheduler, 0.001, content=True).turn, content=True)
    for _ in range(40):
        loop.next()
    assert 0.1 <= loop.now <= 0.16 + 0.001


def test_content_waits_where_memory_is_used_up() -> None:
    for content in (False, True):
        loop, scheduler = _scheduler(budget=1000)
        scheduler.memory.used = 1001
        scheduler.add_turn(Session(scheduler, 0.0, content=content).turn, content=content)
        for _ in range(10):
            loop.next()
        assert loop.now == pytest.approx(0.1 if content else 0.0)


def test_large_reads_of_one_round_become_a_flood() -> None:
    loop, scheduler = _scheduler()
    for _ in range(100):  # as much, but in separate rounds
        assert not scheduler.flooded(0.001)
        loop.next()
    found = []
    for _ in range(5):
        found.append(scheduler.flooded(0.001))
        loop.now += 0.0001  # as uvloop's time does
    assert found == [False, False, False, True, True]
    assert [scheduler.sweep() for _ in range(3)] == [True, False, False]  # it looks at all sessions
    loop.next()
    loop.now += 0.1
    assert scheduler.flooded(0.001)  # for a while
    loop.next()
    loop.now += 1.0
    assert not scheduler.flooded(0.001)
