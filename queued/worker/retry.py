"""The time of the next attempt (pure)."""

from __future__ import annotations

from queued.config import Retry


def delay(retry: Retry, attempts: int, chance: float) -> float:
    """Return the seconds to wait after the given number of attempts.

    `chance` in [0, 1) shortens the wait by up to the jitter and never lengthens it: mail goes out
    within one interval after the next hop is back.
    """
    interval = retry.intervals[min(max(attempts, 1), len(retry.intervals)) - 1]
    return interval * (1 - retry.jitter * chance)
