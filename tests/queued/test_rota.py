"""Turns of workers that claim the same rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queued.worker.rota import Rota

TURN, LOOK, OVERDUE = 5.0, 0.25, 0.1


@given(st.integers(2, 12), st.floats(0, 1e6), st.lists(st.floats(-1e6, 2e9), min_size=12))
def test_one_at_a_time_and_everybody(number: int, now: float, ahead: list[float]) -> None:
    """Whatever the processes' own clocks say: at any time one has its turn, and in a round all.

    The others are awake when their turn begins, and look one after the other until then.
    """
    clock = now
    rotas = []
    for place in range(number):
        rota = Rota(lambda a=ahead[place]: clock + a)  # type: ignore[misc]
        mine = clock + ahead[place]
        assert rota.set(place, number, clock, mine - 0.001, mine + 0.001)
        assert not rota.set(place, number, clock, mine - 0.001, mine + 0.001)
        rotas.append(rota)
    seen = []
    for turn in range(number):
        clock = (now // TURN + turn + 0.1) * TURN
        pauses = [rota.pause for rota in rotas]
        assert pauses.count(0.0) == 1
        seen.append(pauses.index(0.0))
        assert rotas[seen[-1]].rest(1.0) == 1.0
        assert all(1.0 <= rota.rest(1.0) <= 5.0 for rota in rotas)
        assert all(rota.rest(3600.0) == 3600.0 for rota in rotas)
        assert [rota.overdue for rota in rotas] == [OVERDUE if pause else 0.0 for pause in pauses]
        looks = sorted(pauses)[1:]
        assert looks[0] >= OVERDUE
        assert looks[0] <= OVERDUE + 2 * LOOK + 0.01  # one place is that of whoever has the turn
        assert looks[-1] <= OVERDUE + number * LOOK + 0.01
        assert all(b - a > LOOK - 0.01 for a, b in pairwise(looks))
        clock = (now // TURN + turn + 1) * TURN - OVERDUE / 2
        following = rotas[(seen[-1] + 1) % number]
        assert following.pause == pytest.approx(OVERDUE / 2, abs=0.01)
        assert following.rest(0.02) == pytest.approx(OVERDUE / 2, abs=0.01)
    assert sorted(seen) == list(range(number))


def test_alone_it_is_always_our_turn() -> None:
    now = 5.0
    rota = Rota(lambda: now)
    assert rota.pause == rota.overdue == 0.0
    rota.set(1, 2, 100.0, now, now)
    pauses = set()
    for n in range(20):
        now = 5.0 + n * TURN + TURN / 2
        pauses.add(rota.pause > 0)
    assert pauses == {True, False}
    assert rota.set(0, 1, 100.0, now, now)
    assert rota.pause == rota.overdue == 0.0


def test_the_best_look_at_the_clock_counts_until_it_is_old() -> None:
    now = 0.0
    rota = Rota(lambda: now)
    rota.set(0, 2, TURN - 0.05, 0.0, 0.0)
    assert rota.pause == 0.0
    rota.set(0, 2, TURN + 0.1, -0.2, 0.2)  # slow, and so it may be wrong
    assert rota.pause == 0.0
    rota.set(0, 2, TURN + 0.1, -0.0, 0.0)
    assert rota.pause > 0.0
    rota.set(0, 2, 2 * TURN + 0.1, -0.3, 0.3)  # slow, but so far off that the clock was set
    assert rota.pause == 0.0
    assert rota.set(1, 2, 2 * TURN + 0.1, -0.3, 0.3)
    assert rota.pause > 0.0
