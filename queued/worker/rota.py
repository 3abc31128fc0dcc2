"""Whose turn it is among workers that claim the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable

_TURN = 0.1  # seconds
_SPREAD = 1.5  # by which a look at the clock may be worse than the best one, more with each look


class Rota:
    """One worker's place in the round, by the database's clock, which all of them share.

    In its turn a worker takes what comes, as a single one would; the others sleep and cost nothing.
    It decides who heeds notifications, never who may claim: where the clocks differ a little two
    are awake for a moment, or a row waits for the next turn; where workers have died it waits for
    the turns that they still have, or for `worker.poll`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._place = 0
        self._number = 1
        self._sure = True  # that the others count as we do
        self._ahead = 0.0  # seconds that the database's clock is ahead of ours
        self._spread = float("inf")  # seconds by which we may be wrong about it

    def set(self, place: int, number: int, clock: float, asked: float, told: float) -> None:
        """Learn that we are the `place`-th of `number`, counted from 0.

        What is new holds from the second time on: the others may not know of it, and a turn that
        nobody takes is worse than one that two take.

        `clock` is what the database's clock said between `asked` and `told` of ours, in seconds.
        """
        self._sure = (place, number) == (self._place, self._number)
        self._place, self._number = place, number
        spread = told - asked
        if spread <= self._spread:
            self._spread = spread
            self._ahead = clock - (asked + told) / 2
        else:
            self._spread *= _SPREAD  # in the end a worse look is better than an old one

    @property
    def pause(self) -> float:
        """Seconds until our turn; 0 while it lasts, and where we are alone."""
        if self._number < 2 or not self._sure:
            return 0.0
        turn, gone = divmod(self._monotonic() + self._ahead, _TURN)
        before = (self._place - int(turn)) % self._number
        return before * _TURN - gone if before else 0.0
