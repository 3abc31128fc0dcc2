"""The answer to the question whether a recipient is known, and its sources' memory of answers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

_MAX_RECIPIENTS = 50_000  # in memory; the one that was used longest ago is dropped first


class Verdict(Enum):
    """Whether a recipient is known."""

    KNOWN = auto()
    UNKNOWN = auto()
    UNSURE = auto()  # whether the recipient is known can't be found out now


class Source(Protocol):
    """Knows recipients. `addresses` are spellings of one, of which one has to be known."""

    def verdict(self, addresses: tuple[str, ...]) -> Verdict | None:
        """Return the verdict, None if it has to be looked up."""

    async def look_up(self, addresses: tuple[str, ...]) -> None:
        """Find the verdict out; afterwards `verdict` has it."""

    async def stop(self) -> None:
        """Close connections."""


class Remembered:
    """Remembers verdicts for a time each, and that a recipient was known once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._verdicts: OrderedDict[tuple[str, ...], tuple[Verdict, float, bool]] = OrderedDict()

    def get(self, key: tuple[str, ...]) -> Verdict | None:
        """Return the verdict, None if there is none or its time is over."""
        found = self._verdicts.get(key)
        if not found or found[1] <= self._clock():
            return None
        self._verdicts.move_to_end(key)
        return found[0]

    def keep(self, key: tuple[str, ...], verdict: Verdict, seconds: float) -> None:
        """Remember a verdict. If it is UNSURE, a recipient that was known before stays KNOWN."""
        before = self._verdicts.get(key)
        known = verdict is Verdict.KNOWN or bool(verdict is Verdict.UNSURE and before and before[2])
        verdict = Verdict.KNOWN if known else verdict
        self._verdicts[key] = (verdict, self._clock() + seconds, known)
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > _MAX_RECIPIENTS:
            self._verdicts.popitem(last=False)
