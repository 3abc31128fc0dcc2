"""When the next attempt is due (pure)."""

from __future__ import annotations

from queued.config import Retry


def delay(retry: Retry, attempts: int, chance: float) -> float:
    """Seconds to wait after the given number of attempts.

    `chance` in [0, 1) shortens the wait by up to the jitter, never lengthens it: mail goes out
    within one interval of the next hop's return.
    """
    interval = retry.intervals[min(max(attempts, 1), len(retry.intervals)) - 1]
    return interval * (1 - retry.jitter * chance)
