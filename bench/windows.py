"""Rates in windows of time, and how a window compares with those beside it."""

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """A span of time by the monotonic clock, with or without a command."""

    start: float
    end: float
    command: str | None = None

    def count(self, arrivals: Sequence[float]) -> int:
        """Return how many of the sorted times lie in it."""
        return bisect_left(arrivals, self.end) - bisect_left(arrivals, self.start)

    def rate(self, arrivals: Sequence[float]) -> float:
        """Return how many per second."""
        return self.count(arrivals) / (self.end - self.start)


@dataclass(frozen=True)
class Compared:
    """The rate while a command worked, in the windows without one beside it, and their ratios."""

    command: str
    before: float
    during: float
    after: float
    ratio: float
    aftermath: float


def compare(windows: Sequence[Window], times: Sequence[float]) -> list[Compared]:
    """Compare every window with a command with its neighbours, both taken together.

    A ratio of 1 means that the command cost nothing. Its effect on the mail after its end also
    lowers the rate beside it. So the aftermath compares the window after it with the median of all
    windows without a command. Windows alternate and begin and end without
    a command; a time of 0 means that the message never arrived.
    """
    arrivals = sorted(time for time in times if time)
    quiet = [window.rate(arrivals) for window in windows if window.command is None]
    usual = statistics.median(quiet) if quiet else 0.0
    found = []
    for before, window, after in zip(windows, windows[1:], windows[2:], strict=False):
        if window.command is None:
            continue
        seconds = before.end - before.start + after.end - after.start
        beside = (before.count(arrivals) + after.count(arrivals)) / seconds
        during = window.rate(arrivals)
        later = after.rate(arrivals)
        found.append(
            Compared(
                window.command,
                before.rate(arrivals),
                during,
                later,
                during / beside if beside else 0.0,
                later / usual if usual else 0.0,
            )
        )
    return found
