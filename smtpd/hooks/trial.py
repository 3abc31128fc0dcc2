"""Counts how often a handler has answered at once, in its thread."""

from __future__ import annotations

import resource
import time

from smtpd.hooks import outside

CALLS = 500
"""Quick calls after which a handler is called directly."""
_QUICK = 0.0005  # seconds
_SLOW = 20  # quick calls that a slow one undoes: the system may have stopped the thread
_AGAIN = 4  # times more calls in each later trial

type Start = tuple[float, int]


class Trial:
    """Has the handler `passed` after enough quick calls, of which none waited.

    The thread of the handler calls `begin` and `end`; the thread of the sessions calls the others.
    """

    def __init__(self, calls: int = CALLS) -> None:
        self._needed = calls
        self._quick = 0

    @property
    def passed(self) -> bool:
        """Whether the handler may be called directly."""
        return self._quick >= self._needed

    def begin(self) -> Start:
        """Return the state of the calling thread before a call."""
        outside.forget()
        return time.perf_counter(), waits()

    def end(self, start: Start, *, failed: bool) -> None:
        """Count a call. It waited if the thread gave up its processor by itself."""
        began, before = start
        if failed or waits() > before or outside.begun():
            self._quick = 0
        elif time.perf_counter() - began > _QUICK:
            self._quick = max(0, self._quick - _SLOW)
        else:
            self._quick += 1

    def fail(self) -> None:
        """Begin the same trial again."""
        self._quick = 0

    def repeat(self) -> None:
        """Begin a longer trial, because direct calls were not as quick."""
        self._quick, self._needed = 0, max(1, self._needed) * _AGAIN


def waits() -> int:
    """Return how often the calling thread has waited: its voluntary context switches."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
