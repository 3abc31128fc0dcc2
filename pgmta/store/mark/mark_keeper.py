"""Keeps the mark of one worker's claims, while dead rows make them dear."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.binary import Bigints, Smallints, Texts
from pgmta.postgres.link import Link
from pgmta.service import rest_after
from pgmta.store.mark.mark import MAX_IDS, MAX_PAIRS, Found, Mark, Place
from pgmta.store.mark.ticks import Ticks
from pgmta.store.queries import Statement, queries

DEAR_S = 0.002  # a claim's statement that takes longer may be dear
DEAR_BLOCKS = 500  # that a look from the beginning reads more than usual, with many dead rows
PROBE_INTERVAL_S = 5.0  # between looks whether claims are dear
TICK_INTERVAL_S = 0.5
_MISSED_COST_FACTOR = 4  # a whole look may follow so soon after a passed over transaction
MIN_LOOK_INTERVAL_S, MAX_LOOK_INTERVAL_S = 5.0, 60.0  # between whole looks
MAX_LOOK_TURNS = 5  # before the first comes again: with more workers, some have the same turn
_GATHER_INTERVAL_S = 2.0  # between looks whether a backlog is over
_BLOCKS_PER_ROW = 2  # that a live row costs a look at most: index and heap
_BLOCKS_PER_PAIR = 5  # the same for a step of a walk
_BLOCKS_PER_LEAF = 3  # that the way into the index of a leaf partition costs at most
_PROBED_ROWS = 300  # about as many as a claim looks at
_MAX_ROWS = 20_000  # that came since the mark: more are found pair by pair
_WHOLE_ROWS = 4 * MAX_IDS  # of a whole look: more are a backlog
PAIRS_PER_STATEMENT = 512  # of domain and priority that one statement visits
START: Place = "", 1 << 14
"""The place before the first domain."""

_SQL = queries("mark")
_AFTER_BEFORE = b" AND (SELECT number FROM before) IS NOT NULL"
_FIRST_COLUMN = 5  # of a row, after those of the tick

log = get("worker")


class MarkKeeper:
    """Says where claims begin: at `mark`, or at the beginning while that is None.

    Call `claimed` after each statement of a claim, and `attend` before one if it is `due`. Both
    cost nothing while claims are cheap. Then a look from the beginning tells whether it reads far
    more blocks than it finds rows, because times alone say little on a busy host. While that is so,
    a tick every half second moves the mark on, and whole looks find rows that came late.

    Whole looks may take seconds: with a connection of their own, `looks`, claims go on meanwhile.
    `turn` returns the place of this worker, and the number of those that share its rows: they take
    turns with whole looks.
    """

    def __init__(self, link: Link, name: str, priority: int, looks: Link | None = None) -> None:
        self.mark: Mark | None = None
        """The mark; None: claims look from the beginning."""
        self.turn: Callable[[], tuple[int, int]] = lambda: (0, 1)
        self._link = link
        self._looks = looks or link
        self._looking: asyncio.Task[None] | None = None
        self._era = 0  # number of marks that had to be given up
        self._name = name
        self._priority = priority
        self._statements: dict[str, Statement] = {}
        self._active = False
        self._slow = 0  # statements in a row that took long
        self._by_domain = False  # whether the last of them was by domain
        self._at = 0.0  # when to attend again, by the monotonic clock
        self._gather_at = 0.0  # when a backlog may be tried again, by the monotonic clock
        self._ticks = Ticks()
        self._looked = -math.inf  # time of the last whole look, by the database's clock
        self._cost = 0.0  # seconds that it took

    def compose(self, parts: dict[str, str], walk: bytes) -> None:
        """Compose the statements, with these parts of a claim's."""
        near = {name: parts[name] for name in ("key", "urgent", "partition")}
        free = b" " + _SQL["free"]
        look = _SQL["look"].fill(before="", after_before="", blocks="0", leaves="0")
        self._statements = {
            "look": look.fill(**near),
            "whole look": _SQL["look"].fill(**_measured("found")).fill(**near),
            "walk": _SQL["walk"].fill(walk=walk, **_measured("walk"))
            .fill(free=free + _AFTER_BEFORE)
            .fill(**near),
            "floors": _SQL["floors"].fill(free=free).fill(**near),
        }  # fmt: skip

    @property
    def due(self) -> bool:
        """Whether to call `attend` now."""
        return (self._active or self._slow > 1) and time.monotonic() >= self._at

    def claimed(self, seconds: float, *, by_domain: bool) -> None:
        """Note what a statement of a claim has taken."""
        if not self._active:
            self._slow = self._slow + 1 if seconds > DEAR_S else 0
            self._by_domain = by_domain

    def give_back(self, ids: Iterable[int]) -> None:
        """Note rows that may be free from now on, and keep the time of their next attempt."""
        if self.mark:
            self.mark.give_back(ids)

    async def attend(self) -> None:
        """Look whether claims are dear, or tick. After an error claims begin at the beginning."""
        if not self._active:
            self._slow, self._at = 0, time.monotonic() + PROBE_INTERVAL_S
            await self._aside(self._probe)
        elif not self.mark:
            await self._try(self._begin())
        else:
            await self._try(self._tick(self.mark))

    async def _probe(self) -> None:
        self._ticks = Ticks()
        dear = await self._dear_by_time()
        if not dear and self._by_domain:
            _, excess = await self._walk_on(START)
            dear = excess > DEAR_BLOCKS
        if dear:
            self._active, self._at = True, 0.0
            log.info("claims pass over dead rows, which a snapshot keeps", worker=self._name)

    async def _dear_by_time(self) -> bool:
        _, excess = await self._look(-math.inf, math.inf, _PROBED_ROWS, whole=True)
        return excess > DEAR_BLOCKS

    def _end(self) -> None:
        """Let claims begin at the beginning again."""
        self._active, self._slow = False, 0
        self._at = time.monotonic() + PROBE_INTERVAL_S
        self._forget()

    def _forget(self) -> None:
        self.mark = None
        self._era += 1

    async def _begin(self) -> None:
        """Tick without a mark, and look at all rows once a moment is known."""
        self._at = time.monotonic() + TICK_INTERVAL_S
        await self._look(math.inf, -math.inf, 0)
        if self._ticks.moment > -math.inf:
            await self._aside(self._look_at_all, Mark(self._ticks.moment))

    async def _tick(self, mark: Mark) -> None:
        self._at = time.monotonic() + TICK_INTERVAL_S
        moment = max(mark.moment, self._ticks.moment)
        if mark.pairs is None:
            rows, _ = await self._look(mark.moment, moment, _MAX_ROWS, mark.remembered)
            if self.mark and not mark.move(moment, rows, cut=len(rows) >= _MAX_ROWS):
                await self._spread(mark)
        else:
            rows, _ = await self._look(mark.moment, math.inf, _MAX_ROWS, mark.remembered)
            if self.mark:
                cut = len(rows) >= _MAX_ROWS
                mark.learn(rows, mark.moment if cut else moment)
                self._ticks.missed |= cut
                await self._raise_floors(mark)
        if self.mark and self._whole_look_due():
            await self._aside(self._look_at_all, mark)

    async def _aside[*A](self, work: Callable[[*A], Coroutine[Any, Any, None]], *args: *A) -> None:
        """Do work that may take seconds, aside if there is a connection for it."""
        if self._looks is self._link:
            await self._try(work(*args))
        elif not self._looking or self._looking.done():
            self._looking = asyncio.create_task(self._try(work(*args)))

    def _whole_look_due(self) -> bool:
        waited = self._ticks.clock - self._looked
        interval = MIN_LOOK_INTERVAL_S
        if not (self._ticks.missed and waited >= _MISSED_COST_FACTOR * self._cost):
            # doubled, so that workers whose looks take about as long agree on the turns
            while interval < rest_after(self._cost, MAX_LOOK_INTERVAL_S):
                interval = min(2 * interval, MAX_LOOK_INTERVAL_S)
        place, number = self.turn()
        turns = min(number, MAX_LOOK_TURNS)
        ours = int(self._ticks.clock // interval) % turns == place % turns
        # a worker that sleeps may miss its turns
        return waited >= interval and (ours or waited >= turns * interval)

    async def _look_at_all(self, mark: Mark) -> None:
        """Look from the beginning: rows came late, or there is no mark yet."""
        began, era = time.monotonic(), self._era
        self._ticks.missed = False
        if mark.pairs is not None:
            await self._walk(mark)
        else:
            rows, excess = await self._look(-math.inf, mark.moment, _WHOLE_ROWS, whole=True)
            cut = len(rows) >= _WHOLE_ROWS
            if era != self._era:
                return
            if not cut and excess <= DEAR_BLOCKS:
                self._end()
                log.info("dead rows are gone", worker=self._name)
            elif mark.add(rows, cut=cut):
                self.mark = mark
            else:
                await self._walk(mark)
        self._cost = time.monotonic() - began
        self._looked = self._ticks.clock

    async def _walk(self, mark: Mark) -> None:
        """Learn the pairs of all free rows."""
        moment, floors, excess, place = self._ticks.moment, dict[Place, float](), 0, START
        era = self._era
        steps = PAIRS_PER_STATEMENT
        while steps == PAIRS_PER_STATEMENT and len(floors) <= MAX_PAIRS:
            found, more = await self._walk_on(place)
            floors |= found
            excess, steps = excess + more, len(found)
            if found:
                place = next(reversed(found))
        # many pairs and partitions hide dead rows
        dear = excess > DEAR_BLOCKS or await self._dear_by_time()
        if era != self._era:
            return
        if len(floors) > MAX_PAIRS or not dear:
            self._end()
        else:
            mark.set_pairs(
                {pair: at for pair, at in floors.items() if pair[1] <= self._priority}, moment
            )
            self.mark = mark

    async def _walk_on(self, place: Place) -> tuple[dict[Place, float], int]:
        """Return the next pairs, each with its first next attempt.

        The second value is how many blocks they cost beyond what they would without dead rows.
        """
        params = {"cursor": place[0], "level": place[1], "steps": PAIRS_PER_STATEMENT}
        rows = await self._looks.run(self._statements["walk"], params)
        floors = {(row[2], row[3]): row[4] for row in rows if row[2] is not None}
        blocks, leaves = rows[0][:2]
        usual = (len(floors) + 1) * (_BLOCKS_PER_PAIR + _BLOCKS_PER_LEAF * leaves)
        return floors, blocks - usual

    @property
    def has_pairs(self) -> bool:
        """Whether there is a mark and a backlog, whose pairs are known."""
        return self.mark is not None and self.mark.pairs is not None

    async def spread(self) -> bool:
        """Know the rows before the mark by pairs, because there is a backlog.

        Returns False without a mark, and after an error: claims begin at the beginning then.
        """
        if self.mark and self.mark.pairs is None:
            await self._try(self._spread(self.mark))
        return self.has_pairs

    async def gather(self) -> None:
        """Know the rows before the mark by their ids again, if they are few."""
        if self.mark and self.mark.pairs is not None and time.monotonic() >= self._gather_at:
            await self._try(self._gather(self.mark))

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StoreUnavailable, psycopg.Error) as error:
            log.debug("claims have no mark", worker=self._name, reason=str(error))
            self._end()

    async def _spread(self, mark: Mark) -> None:
        rows, _ = await self._look(mark.moment, math.inf, _MAX_ROWS, mark.remembered)
        if self.mark and len(rows) < _MAX_ROWS:
            mark.spread(rows)
        elif self.mark:
            await self._walk(mark)

    async def _gather(self, mark: Mark) -> None:
        pairs = dict(mark.pairs or {})
        found = await self._floors(pairs.items(), mark.moment, MAX_IDS + 1)
        # otherwise a walk has found more meanwhile, or they are many and may stay so for hours
        if mark.pairs != pairs or not mark.gather([number for _, number, _ in found]):
            self._gather_at = time.monotonic() + _GATHER_INTERVAL_S

    async def _raise_floors(self, mark: Mark) -> None:
        if asked := mark.used(PAIRS_PER_STATEMENT):
            found = await self._floors(asked, math.inf, 1)
            mark.raise_floors(asked, {place: at for place, _, at in found})

    async def _floors(
        self, pairs: Iterable[tuple[Place, float]], high: float, each: int
    ) -> list[tuple[Place, int, float]]:
        """Return the first free rows of pairs from their floors on: place, id, next attempt."""
        most = MAX_IDS + 1 if each > 1 else MAX_PAIRS
        params = {**arrays(pairs), "high": high, "each": each, "most": most}
        rows = await self._link.run(self._statements["floors"], params)
        return [((row[0], row[1]), row[2], row[3]) for row in rows]

    async def _look(
        self,
        low: float,
        high: float,
        most: int,
        ids: Iterable[int] = (),
        *,
        whole: bool = False,
    ) -> tuple[list[Found], int]:
        """Tick, and return the rows between two moments and those of `ids`.

        A whole look is no tick; the second value is how many blocks it cost beyond what it would
        without dead rows.
        """
        params = {"low": low, "high": high, "most": most, "ids": Bigints(ids),
                  "priority": self._priority}  # fmt: skip
        if whole:
            rows = await self._looks.run(self._statements["whole look"], params)
        else:
            rows = await self._link.run(self._statements["look"], params)
        clock, number, snapshot, blocks, leaves = rows[0][:_FIRST_COLUMN]
        # ticks may overtake a whole look
        if not whole and not self._ticks.see(clock, number, snapshot):
            self._forget()
        found = [
            Found(each[5], (each[6], each[7]), each[8], each[9])
            for each in rows
            if each[_FIRST_COLUMN] is not None
        ]
        usual = _BLOCKS_PER_ROW * len(found) + _BLOCKS_PER_LEAF * leaves * (self._priority + 1)
        return found, blocks - usual


def arrays(pairs: Iterable[tuple[Place, float]]) -> dict[str, Any]:
    """Return pairs and their floors as the parameters of a statement."""
    pairs = [*pairs]
    return {
        "domains": Texts(place[0] for place, _ in pairs),
        "levels": Smallints(place[1] for place, _ in pairs),
        "floors": [floor for _, floor in pairs],
    }


def _measured(name: str) -> dict[str, bytes]:
    """Return the parts that count the blocks of the CTE `name`, and the leaves."""
    return {
        "before": _SQL["before"].fill(read=_SQL["read"].fill(what="(SELECT) AS one")),
        "after_before": _AFTER_BEFORE,
        "blocks": _SQL["read"].fill(what=name) + b" - (SELECT number FROM before)",
        "leaves": _SQL["leaves"],
    }
