"""Turns of workers that claim the same rows."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queued.worker.turns import ClockSample, DelayedWake, TurnSchedule

TURN, LOOK, OVERDUE = 5.0, 0.25, 0.1


@given(st.integers(2, 12), st.floats(0, 1e6), st.lists(st.floats(-1e6, 2e9), min_size=12))
def test_one_at_a_time_and_everybody(number: int, now: float, ahead: list[float]) -> None:
    """Whatever the processes' own clocks say: at any time one has its turn, and in a round all.

    The others are awake when their turn begins, and look one after the other until then.
    """
    clock = now
    schedules = []
    for place in range(number):
        schedule = TurnSchedule(lambda a=ahead[place]: clock + a)  # type: ignore[misc]
        mine = clock + ahead[place]
        sample = ClockSample(clock, mine - 0.001, mine + 0.001)
        assert schedule.set(place, number, sample)
        assert not schedule.set(place, number, sample)
        schedules.append(schedule)
    seen = []
    for turn in range(number):
        clock = (now // TURN + turn + 0.1) * TURN
        pauses = [schedule.pause for schedule in schedules]
        assert pauses.count(0.0) == 1
        seen.append(pauses.index(0.0))
        assert schedules[seen[-1]].due_in(1.0) == 1.0
        assert all(1.0 <= schedule.due_in(1.0) <= 5.0 for schedule in schedules)
        assert all(schedule.due_in(3600.0) == 3600.0 for schedule in schedules)
        assert [schedule.overdue for schedule in schedules] == [
            OVERDUE if pause else 0.0 for pause in pauses
        ]
        looks = sorted(pauses)[1:]
        assert looks[0] >= OVERDUE
        assert looks[0] <= OVERDUE + 2 * LOOK + 0.01  # one place belongs to the worker of the turn
        assert looks[-1] <= OVERDUE + number * LOOK + 0.01
        assert all(b - a > LOOK - 0.01 for a, b in pairwise(looks))
        clock = (now // TURN + turn + 1) * TURN - OVERDUE / 2
        following = schedules[(seen[-1] + 1) % number]
        assert following.pause == pytest.approx(OVERDUE / 2, abs=0.01)
        assert following.due_in(0.02) == pytest.approx(OVERDUE / 2, abs=0.01)
    assert sorted(seen) == list(range(number))


def test_alone_it_is_always_our_turn() -> None:
    now = 5.0
    schedule = TurnSchedule(lambda: now)
    assert schedule.pause == schedule.overdue == 0.0
    schedule.set(1, 2, ClockSample(100.0, now, now))
    pauses = set()
    for n in range(20):
        now = 5.0 + n * TURN + TURN / 2
        pauses.add(schedule.pause > 0)
    assert pauses == {True, False}
    assert schedule.set(0, 1, ClockSample(100.0, now, now))
    assert schedule.pause == schedule.overdue == 0.0


def test_the_best_look_at_the_clock_counts_until_it_is_old() -> None:
    now = 0.0
    schedule = TurnSchedule(lambda: now)
    schedule.set(0, 2, ClockSample(TURN - 0.05, 0.0, 0.0))
    assert schedule.pause == 0.0
    schedule.set(0, 2, ClockSample(TURN + 0.1, -0.2, 0.2))  # slow, and so it may be wrong
    assert schedule.pause == 0.0
    schedule.set(0, 2, ClockSample(TURN + 0.1, -0.0, 0.0))
    assert schedule.pause > 0.0
    schedule.set(
        0, 2, ClockSample(2 * TURN + 0.1, -0.3, 0.3)
    )  # slow, but so far off that the clock was set
    assert schedule.pause == 0.0
    assert schedule.set(1, 2, ClockSample(2 * TURN + 0.1, -0.3, 0.3))
    assert schedule.pause > 0.0


class Others(TurnSchedule):
    """Others have the turn, for the pause given."""

    length = 0.01

    @property
    def pause(self) -> float:
        """Seconds."""
        return self.length


async def test_mail_that_comes_in_a_pause_has_a_pause_of_its_own() -> None:
    schedule, event = Others(), asyncio.Event()
    delayed = DelayedWake(schedule, event)

    async def woken() -> None:
        await event.wait()
        event.clear()

    assert delayed.notify() == 0.01
    assert not event.is_set()
    await woken()
    schedule.length = 0.0
    assert delayed.notify() == 0.0
    assert event.is_set()  # our turn: at once
    event.clear()
    schedule.length = 0.01
    for _ in range(3):
        delayed.notify()
    await woken()
    await woken()  # for mail after the first: it may be too new for the look before
    schedule.length = 0.0
    delayed.notify()
    assert event.is_set()
    event.clear()
    assert not delayed._timer
    assert not event.is_set()
