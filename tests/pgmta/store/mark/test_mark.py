"""The mark: each free row that did not come late is behind it, or known."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from pgmta.store.mark import mark as module
from pgmta.store.mark.mark import Found, Mark, Place

FREE, LEASED = True, False


@dataclass
class Row:
    place: Place
    at: float
    free: bool = True
    open: bool = False  # its transaction has not ended
    late: bool = False  # nobody told us: only a whole look finds it


class Queue:
    """Rows that come, are leased and end, and a mark that looks at them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock, self.last = 100.0, 0
        self.rows: dict[int, Row] = {}
        self.mark = Mark(self.clock)
        self.moment = self.clock
        self.backlogs = 0

    def seen(self, low: float, high: float, ids: list[int] | None = None) -> list[Found]:
        """What a look answers."""
        return [
            Found(number, row.place, row.at, row.free)
            for number, row in self.rows.items()
            if not row.open and (low <= row.at < high or (number in (ids or []) and row.at < high))
        ]

    def come(self) -> None:
        place = f"d{self.dice.randrange(6)}.example", self.dice.randrange(3)
        self.last += 1
        self.rows[self.last] = Row(place, self.clock, open=self.dice.random() < 0.3)

    def commit(self) -> None:
        if there := [row for row in self.rows.values() if row.open]:
            self.dice.choice(there).open = False

    def known(self, number: int) -> bool:
        """Whether a claim that looks from the mark may meet this row."""
        row, mark = self.rows[number], self.mark
        if row.at >= mark.moment or number in mark.ids:
            return True
        return mark.pairs is not None and mark.pairs.get(row.place, row.at + 1) <= row.at

    def claim(self) -> None:
        self.mark.after(("", 1 << 14), 4)
        there = [n for n, row in self.rows.items() if row.free and not row.open and self.known(n)]
        for number in self.dice.sample(there, min(len(there), 4)):
            self.rows[number].free = False

    def end(self) -> None:
        """A lease of ours ends, or one of another worker, which tells us nothing."""
        leased = [number for number, row in self.rows.items() if not row.free]
        for number in self.dice.sample(leased, min(len(leased), 3)):
            match self.dice.randrange(6):
                case 0:
                    self.rows[number].free = True
                    self.mark.give_back([number])
                case 1:
                    self.rows[number].free = True
                    self.rows[number].late = True
                case _:
                    del self.rows[number]

    def tick(self) -> None:
        """A tick, sometimes with other things between its question and its answer."""
        mark, moment = self.mark, self.moment
        # what the next tick may count on
        following = min([self.clock, *(row.at for row in self.rows.values() if row.open)])
        high = moment if mark.pairs is None else self.clock
        backlog, found = mark.pairs is not None, self.seen(mark.moment, high, mark.remembered)
        for _ in range(self.dice.choice((0, 0, 1, 4))):
            self.dice.choice((self.come, self.commit, self.end, self.look))()
            self.clock += self.dice.random()
        self.moment = following
        if not backlog:
            if not mark.move(moment, found, cut=self.dice.random() < 0.01):
                mark.spread(self.seen(mark.moment, self.clock, mark.remembered))
                self.backlogs += 1
        else:
            mark.learn(found, moment)
            asked = mark.used(3)
            mark.raise_floors(asked, self.firsts(dict(asked)))

    def firsts(self, floors: dict[Place, float]) -> dict[Place, float]:
        found: dict[Place, float] = {}
        for row in self.rows.values():
            if row.free and not row.open and row.at >= floors.get(row.place, row.at + 1):
                found[row.place] = min(found.get(row.place, row.at), row.at)
        return found

    def gather(self) -> None:
        if (pairs := self.mark.pairs) is not None:
            there = self.seen(0, self.mark.moment)
            floor = {row.id: pairs.get(row.place, row.at + 1) for row in there}
            self.mark.gather([row.id for row in there if row.free and floor[row.id] <= row.at])

    def look(self) -> None:
        """A whole look, after which no row before the mark is late."""
        mark, moment = self.mark, self.mark.moment
        everywhere = dict.fromkeys((row.place for row in self.rows.values()), 0.0)
        if mark.pairs is not None or not mark.add(self.seen(0, mark.moment), cut=False):
            mark.set_pairs(self.firsts(everywhere), self.moment)
        for row in self.rows.values():
            row.late = row.late and row.at >= moment


@pytest.mark.parametrize("seed", range(30))
def test_each_free_row_that_did_not_come_late_is_known(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_IDS", 12)
    queue = Queue(seed)
    steps = [queue.come] * 6 + [queue.commit] * 3 + [queue.claim] * 2 + [queue.end] * 3
    steps += [queue.tick] * 3 + [queue.gather, queue.look]
    moved = 0
    for _ in range(1500):
        queue.clock += queue.dice.random()
        before = queue.mark.moment
        queue.dice.choice(steps)()
        moved += queue.mark.moment > before
        missed = [
            number for number, row in queue.rows.items()
            if row.free and not (row.open or row.late or queue.known(number))
        ]  # fmt: skip
        assert not missed
        if len(queue.rows) > 60:  # otherwise the backlog never ends
            queue.rows = dict([*queue.rows.items()][-5:])
    assert moved > 50
    assert queue.backlogs, "also with a backlog"


def test_leased_rows_that_fall_behind_the_mark_in_a_backlog_are_remembered() -> None:
    mark = Mark(100.0)
    mark.spread([])
    mark.learn([Found(1, ("d.example", 5), 105.0, LEASED)], 110.0)
    assert mark.remembered == [1]
