"""Turns of workers that claim the same rows: one of them wakes for new mail, the others sleep.

TurnKeeper gives a TurnSchedule the place of its worker and the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pgmta.logs import get
from pgmta.store.admin.workers import Registry

_TURN_S = 5.0  # each worker that begins one has cold caches
_POLL_OFFSET_S = 0.25  # between the polls of two workers that have no turn
_OVERDUE_S = 0.1  # afterwards due mail counts as left behind
_TIMER_DELAY_S = 0.001  # a wait is longer, because timers have whole milliseconds and may be early
_OUT_OF_TURN_FACTOR = 5  # duties of workers without a turn have pauses so many times as long
# for the clock's error, with each sample, so that old samples lose weight
_ERROR_GROWTH_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The database's clock said `server` between `asked` and `answered` of ours, in seconds."""

    server: float
    asked: float
    answered: float


class TurnSchedule:
    """One worker's turns, by the database's clock, which all workers share.

    In its turn a worker claims mail as it comes, as a single worker would, and the others sleep.
    While there is mail they poll one after the other for mail that was left behind: the worker
    whose turn it is may be dead, full or too slow. So the schedule decides which worker
    wakes, and never which worker may claim.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.number = 1
        """Workers that claim the same rows."""
        self.shared = False
        """Whether there are others; without them it is always our turn."""
        self._place = 0
        self._ahead = 0.0  # seconds by which the clock of the database is ahead of ours
        self._spread = float("inf")  # seconds by which `_ahead` may be wrong

    def set(self, place: int, number: int, sample: ClockSample) -> bool:
        """Learn that this worker is the `place`-th of `number`, from 0; return if that is new."""
        new = (place, number) != (self._place, self.number)
        self._place, self.number, self.shared = place, number, number > 1
        spread = sample.answered - sample.asked
        ahead = sample.server - (sample.asked + sample.answered) / 2
        stepped = abs(ahead - self._ahead) > (spread + self._spread) / 2
        if spread <= self._spread or stepped:
            self._spread = spread
            self._ahead = ahead
        else:
            self._spread *= _ERROR_GROWTH_FACTOR
        return new

    def turn(self) -> tuple[int, int]:
        """Return the place of this worker, from 0, and the number of those that share its rows."""
        return self._place, self.number

    @property
    def pause(self) -> float:
        """Seconds until this worker has to look for mail that comes now; 0.0 in its turn."""
        if not self.shared:
            return 0.0
        clock = self._monotonic() + self._ahead
        turn = self._until(clock)
        if not turn:
            return 0.0
        look = (self._place * _POLL_OFFSET_S - clock - _OVERDUE_S) % (
            self.number * _POLL_OFFSET_S
        ) + _OVERDUE_S
        return min(turn, look) + _TIMER_DELAY_S

    def due_in(self, every: float) -> float:
        """Return the seconds until a duty is due here that one worker does every `every` seconds.

        Workers without a turn do it five times less often, in case the one with the turn is dead.
        """
        turn = self._until(self._monotonic() + self._ahead)
        return min(max(every, turn), _OUT_OF_TURN_FACTOR * every)

    def _until(self, clock: float) -> float:
        """Return the seconds until our turn, 0.0 while it lasts."""
        turn, gone = divmod(clock, _TURN_S)
        before = (self._place - int(turn)) % self.number
        return before * _TURN_S - gone if before else 0.0

    @property
    def overdue(self) -> float:
        """Seconds for which mail must have been due before this worker claims it."""
        return _OVERDUE_S if self.pause else 0.0


class DelayedWake:
    """Sets `woken` at once in our turn, otherwise after the pause of the schedule.

    A notification during that pause starts another one afterwards. Its mail may be too new for the
    look at the end of the first.
    """

    def __init__(self, schedule: TurnSchedule, woken: asyncio.Event) -> None:
        self._schedule = schedule
        self._woken = woken
        self._timer: asyncio.TimerHandle | None = None
        self._again = False
        self.at_once_at = 0.0
        """When it last set `woken` at once, by the monotonic clock."""

    def notify(self) -> float:
        """Take a notification of mail; return the pause in seconds, 0.0 in our turn."""
        pause = self._schedule.pause
        if not pause:
            self.at_once_at = time.monotonic()
            self._woken.set()
        elif self._timer:
            self._again = True
        else:
            self._timer = asyncio.get_running_loop().call_later(pause, self._over)
        return pause

    def _over(self) -> None:
        self._timer = None
        self._woken.set()
        if self._again:
            self._again = False
            self.notify()


_QUESTION_INTERVAL_S = 0.5  # about the workers that share rows
_MAX_UNCHANGED_QUESTIONS = 6  # in a row, before the longer interval
_SETTLED_INTERVAL_S = 5.0  # of these questions, after so many without news

log = get("queued")


class TurnKeeper:
    """Gives each schedule the place of its worker; `schedules` has them by the worker's name."""

    def __init__(self, registry: Registry, schedules: Mapping[str, TurnSchedule]) -> None:
        self._registry = registry
        self._schedules = schedules
        self._left = _MAX_UNCHANGED_QUESTIONS

    async def ask_places(self) -> None:
        """Ask the database once. Raises StoreUnavailable, psycopg.Error."""
        asked = time.monotonic()
        places = await self._registry.places()
        answered = time.monotonic()
        self._left = max(0, self._left - 1)
        for name, schedule in self._schedules.items():
            before = schedule.number
            place = places.get(name)
            if place and schedule.set(
                place.before, place.number, ClockSample(place.clock, asked, answered)
            ):
                self._left = _MAX_UNCHANGED_QUESTIONS
            if schedule.number != before:
                log.info("workers share rows", worker=name, workers=schedule.number)

    def pause(self) -> float:
        """Return the seconds until the next question."""
        return _QUESTION_INTERVAL_S if self._left else _SETTLED_INTERVAL_S

    def due_in(self, every: float) -> float:
        """Return the seconds until a duty of all processes is due here; see TurnSchedule.due_in."""
        return min((each.due_in(every) for each in self._schedules.values()), default=every)
