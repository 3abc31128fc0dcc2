"""Keeps the turns of a process's workers by regular questions to the database."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pgmta.logs import get
from pgmta.store.workers import Registry
from queued.worker.turns import ClockSample, TurnSchedule

_LOOK = 0.5  # seconds between questions about the workers that share rows
_LOOKS = 6  # such questions without news, before the longer interval
_LOOK_SETTLED = 5.0  # seconds from then on

log = get("queued")


class TurnKeeper:
    """Gives each schedule the place of its worker; `schedules` has them by the worker's name."""

    def __init__(self, registry: Registry, schedules: Mapping[str, TurnSchedule]) -> None:
        self._registry = registry
        self._schedules = schedules
        self._left = _LOOKS

    async def do(self) -> None:
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
                self._left = _LOOKS
            if schedule.number != before:
                log.info("workers share rows", worker=name, workers=schedule.number)

    def pause(self) -> float:
        """Return the seconds until the next question."""
        return _LOOK if self._left else _LOOK_SETTLED

    def due_in(self, every: float) -> float:
        """Return the seconds until a duty of all processes is due here; see TurnSchedule.due_in."""
        return min((each.due_in(every) for each in self._schedules.values()), default=every)
