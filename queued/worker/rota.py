"""Whose turn it is among workers that claim the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable

_TURN = 5.0  # seconds: each worker that begins one has cold caches
_LOOK = 0.25  # seconds between two looks after those who have their turn
_OVERDUE = 0.1  # seconds after which mail is taken to be left behind
_LATE = 0.001  # seconds that a wait is longer: timers have whole milliseconds and may be early
_SELDOM = 5  # times as long rest those who have no turn from what one of all has to do
_SPREAD = 1.5  # by which a look at the clock may be worse than the best one, more with each look


class Rota:
    """One worker's place in the round, by the database's clock, which all of them share.

    In its turn a worker takes what comes, as a single one would, and the others sleep. While there
    is mail they look one after the other whether some was left behind, because whoever has the turn
    is dead, has no room or can't keep up. So the round decides who wakes, never who may claim.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.number = 1
        self._place = 0
        self._ahead = 0.0  # seconds that the database's clock is ahead of ours
        self._spread = float("inf")  # seconds by which we may be wrong about it

    def set(self, place: int, number: int, clock: float, asked: float, told: float) -> bool:
        """Learn that we are the `place`-th of `number`, counted from 0; return whether that is new.

        `clock` is what the database's clock said between `asked` and `told` of ours, in seconds.
        """
        new = (place, number) != (self._place, self.number)
        self._place, self.number = place, number
        spread = told - asked
        ahead = clock - (asked + told) / 2
        stepped = abs(ahead - self._ahead) > (spread + self._spread) / 2
        if spread <= self._spread or stepped:
            self._spread = spread
            self._ahead = ahead
        else:
            self._spread *= _SPREAD  # in the end a worse look is better than an old one
        return new

    @property
    def pause(self) -> float:
        """Seconds until mail that has come now is our business; 0 in our turn, and alone."""
        if self.number < 2:
            return 0.0
        clock = self._monotonic() + self._ahead
        turn = self._until(clock)
        if not turn:
            return 0.0
        look = (self._place * _LOOK - clock - _OVERDUE) % (self.number * _LOOK) + _OVERDUE
        return min(turn, look) + _LATE

    def rest(self, every: float) -> float:
        """Seconds to rest from what one of us does every `every` seconds, whoever has the turn.

        The others do it seldom, in case that he is dead.
        """
        turn = self._until(self._monotonic() + self._ahead)
        return min(max(every, turn), _SELDOM * every)

    def _until(self, clock: float) -> float:
        """Seconds until our turn, 0 while it lasts."""
        turn, gone = divmod(clock, _TURN)
        before = (self._place - int(turn)) % self.number
        return before * _TURN - gone if before else 0.0

    @property
    def overdue(self) -> float:
        """Seconds for which mail must have been due before it is our business: 0 in our turn."""
        return _OVERDUE if self.pause else 0.0
