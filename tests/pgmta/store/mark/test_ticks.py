"""Ticks: no row comes up before the moment, unless its transaction was passed over."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from pgmta.store.mark import ticks as module
from pgmta.store.mark.ticks import Ticks


@dataclass
class Transaction:
    number: int
    began: float
    rows: list[float] = field(default_factory=list)


class Server:
    """Transactions that take numbers, write rows with their times, and end in any order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock, self.next = 1000.0, 10
        self.open: list[Transaction] = []
        self.ended = 9  # the highest number of a transaction that has ended

    def step(self) -> Transaction | None:
        """Something happens; returns a transaction that ended."""
        self.clock += self.dice.expovariate(10)
        if self.dice.random() < 0.5 and len(self.open) < 6:
            self.open.append(Transaction(self.next, self.clock))
            self.next += 1
        for each in self.open:
            if self.dice.random() < 0.5:
                each.rows.append(self.clock)
        # some stay open for long
        young = [each for each in self.open if each.number % 7 or self.dice.random() < 0.01]
        if young and self.dice.random() < 0.6:
            end = self.dice.choice(young)
            self.open.remove(end)
            self.ended = max(self.ended, end.number)
            return end
        return None

    def tick(self) -> tuple[float, int, str]:
        """The answer to a tick: transactions above the one that ended last do not show."""
        shown = sorted(each.number for each in self.open if each.number <= self.ended)
        clock = self.clock
        snapshot = f"{min([*shown, self.ended + 1])}:{self.ended + 1}:{','.join(map(str, shown))}"
        number, self.next = self.next, self.next + 1
        self.ended = max(self.ended, number)
        return clock, number, snapshot


@pytest.mark.parametrize("seed", range(20))
def test_no_row_comes_up_before_the_moment(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLACK_S", 0.0)
    server, ticks = Server(seed), Ticks()
    moved = late = 0
    held = False  # whether a transaction was passed over that has not been missed yet
    for _ in range(3000):
        if (end := server.step()) and any(at < ticks.moment for at in end.rows):
            assert server.clock - end.began > module.PASS_OVER_S
            late, held = late + 1, True
        if server.dice.random() < 0.3:
            before = ticks.moment
            assert ticks.see(*server.tick())
            moved += ticks.moment > before
            assert ticks.missed or not held
            ticks.missed = held = False
    assert moved > 20
    assert late, "some were passed over"


def test_a_clock_or_numbers_that_go_back_leave_no_moment() -> None:
    ticks = Ticks()
    for clock, number in ((100.0, 10), (101.0, 11), (102.0, 12)):
        assert ticks.see(clock, number, f"{number}:{number}:")
    assert ticks.moment == 101.0 - module.SLACK_S
    assert not ticks.see(101.5, 13, "13:13:")
    assert ticks.moment == -math.inf
    for clock, number in ((101.6, 14), (101.7, 15)):
        assert ticks.see(clock, number, f"{number}:{number}:")
    assert ticks.moment == 101.6 - module.SLACK_S
    assert not ticks.see(103.0, 5, "5:5:")
    assert ticks.moment == -math.inf
