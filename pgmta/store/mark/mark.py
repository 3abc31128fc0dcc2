"""A mark: claims need not look before it, because they know what is there (pure)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

type Place = tuple[str, int]
"""A domain and a priority."""

MAX_IDS = 1_000  # of rows before the mark
MAX_PAIRS = 16_384  # of domain and priority: more are no list


class Found(NamedTuple):
    """A row that a look has found; `at` is its next attempt, in seconds since 1970."""

    id: int
    place: Place
    at: float
    free: bool


class Mark:
    """Knows all free rows before `moment`, by their ids or by a floor for each pair.

    A row is free if no lease lasts. While free rows are few, `ids` has them. With a backlog `pairs`
    has each domain and priority with free rows, and a floor: a time before which it has none. Rows
    that come late with an old time are missed until a whole look. Leased rows are remembered while
    there is room: whoever gives one back may tell nobody.
    """

    def __init__(self, moment: float) -> None:
        self.moment = moment
        """In seconds since 1970, by the database's clock."""
        self.pairs: dict[Place, float] | None = None
        """The floors; None while there is no backlog."""
        self._free: dict[int, None] = {}
        self._leased: dict[int, None] = {}
        self._returned: dict[int, None] = {}  # by us or to a whole look, since the last tick
        # pairs that claims have asked since their floor is known
        self._used: dict[Place, None] = {}
        self._order: list[Place] | None = None

    @property
    def ids(self) -> list[int]:
        """Rows before the mark that a claim may lease."""
        return [*self._free]

    @property
    def remembered(self) -> list[int]:
        """All rows before the mark that are known by their ids."""
        return [*self._free, *self._leased]

    def give_back(self, ids: Iterable[int]) -> None:
        """Note rows that may be free from now on: they keep their time, which may be any."""
        for number in ids:
            self._leased.pop(number, None)
            self._free[number] = self._returned[number] = None

    def move(self, moment: float, found: Sequence[Found], *, cut: bool) -> bool:
        """Move on to a moment, without a backlog.

        `found` are the rows between the two moments, and those of `remembered` that are still
        there. Returns False if there are too many, or some are missing: then nothing changes.
        """
        free = dict.fromkeys(row.id for row in found if row.free)
        if cut or len(free) > MAX_IDS:
            return False
        self._free = free | self._returned
        self._remember_leased(row.id for row in found if not row.free)
        self._returned = {}
        self.moment = moment
        return True

    def add(self, found: Sequence[Found], *, cut: bool) -> bool:
        """Take all rows before the mark, of a whole look; returns as `move` does."""
        came = dict.fromkeys(row.id for row in found if row.free)
        if cut or len(free := self._free | came) > MAX_IDS:
            return False
        self._free = free
        self._returned |= came  # because a tick under way does not ask for them
        self._remember_leased([*self._leased, *(row.id for row in found if not row.free)])
        return True

    def _remember_leased(self, ids: Iterable[int]) -> None:
        room = max(0, MAX_IDS - len(self._free))
        self._leased = dict.fromkeys([each for each in ids if each not in self._free][:room])

    def spread(self, found: Iterable[Found]) -> None:
        """Begin a backlog: `found` are the rows of `remembered`, and all from the mark on."""
        self.set_pairs({}, self.moment)
        self.learn(found, self.moment)

    def learn(self, found: Iterable[Found], moment: float) -> None:
        """Learn the pairs of rows from the mark on and of `remembered`, and move to a moment.

        Rows may still come up that are as old as the mark was.
        """
        if (pairs := self.pairs) is None:
            return
        leased = list[int]()
        for row in found:
            if row.free:
                floor = _floor(row.at, self.moment)
                if floor < pairs.get(row.place, math.inf):
                    pairs[row.place] = floor
            elif row.at < moment:
                leased.append(row.id)
        self._free = self._returned
        self._remember_leased(leased)
        self._returned, self._order = {}, None
        self.moment = moment

    def set_pairs(self, floors: dict[Place, float], moment: float) -> None:
        """Take the floors that a walk has found, which began when `moment` was known.

        Pairs that were learnt meanwhile stay.
        """
        if self.pairs is None:
            self.pairs, self.moment = {}, min(self.moment, moment)
        for place, floor in floors.items():
            self.pairs[place] = _floor(floor, moment, self.pairs.get(place, math.inf))
        self._used, self._order = dict.fromkeys(self.pairs), None

    def after(self, cursor: Place, most: int) -> list[tuple[Place, float]]:
        """Return the next pairs with their floors, in their order; a claim is about to ask them."""
        pairs = self.pairs or {}
        if self._order is None:
            self._order = sorted(pairs)
        begin = bisect_right(self._order, cursor)
        places = self._order[begin : begin + most]
        self._used.update(dict.fromkeys(places))
        return [(place, pairs[place]) for place in places]

    def used(self, most: int) -> list[tuple[Place, float]]:
        """Return pairs whose floors may have become higher."""
        pairs = self.pairs or {}
        places = [place for place in self._used if place in pairs][:most]
        return [(place, pairs[place]) for place in places]

    def raise_floors(
        self, asked: Iterable[tuple[Place, float]], firsts: dict[Place, float]
    ) -> None:
        """Take the time of the first free row of each pair asked; pairs without one go.

        A floor that was lowered meanwhile stays.
        """
        if (pairs := self.pairs) is None:
            return
        for place, floor in asked:
            if pairs.get(place) != floor:
                continue
            self._used.pop(place, None)
            if place in firsts:
                pairs[place] = _floor(firsts[place], self.moment)
            elif pairs.pop(place, None) is not None:
                self._order = None

    def gather(self, ids: Sequence[int]) -> bool:
        """End the backlog: `ids` are all free rows before the mark; returns as `move` does."""
        if len(ids) > MAX_IDS:
            return False
        self.pairs = None
        self._free |= dict.fromkeys(ids)
        self._used, self._order = {}, None
        return True


def _floor(*times: float) -> float:
    """Return the least of these times as a floor."""
    floor = min(times)
    return floor if floor >= 0.0 else -math.inf  # a number may be too coarse so long ago
