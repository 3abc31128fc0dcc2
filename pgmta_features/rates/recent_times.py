"""How long something took lately: a histogram that forgets."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (
    0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.12, 0.15, 0.18, 0.25,
)  # fmt: skip
"""Times are known as well as this."""

_EXPECTED_S = 0.01  # before anything was noted
_EXPECTED_WEIGHT = 10  # the expected time counts as much as so many times
# at so many counted times all counts are halved, so that old times lose weight
_HALVING_COUNT = 2000


class RecentTimes:
    """The distribution of the last thousand or two thousand times, in seconds."""

    def __init__(self) -> None:
        self._counts = [0.0] * (len(BOUNDS_S) + 1)
        self._counts[bisect_left(BOUNDS_S, _EXPECTED_S)] = _EXPECTED_WEIGHT

    def note(self, seconds: float) -> None:
        """Count one more time."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        if sum(self._counts) > _HALVING_COUNT:
            self._counts = [count / 2 for count in self._counts]

    def quantile(self, share: float) -> float:
        """Return a bound that this share of the times keeps, or the largest bound."""
        left = sum(self._counts) * share
        for bound, count in zip(BOUNDS_S, self._counts, strict=False):
            left -= count
            if left <= 1e-9:
                return bound
        return BOUNDS_S[-1]

    def cheapest(self, most: float, price: float) -> float:
        """Return the bound up to `most` with the least cost, or the least bound.

        A bound costs itself, and `price` times the share of the times that are longer.
        """
        total = left = sum(self._counts)
        best, cost = BOUNDS_S[0], float("inf")
        for bound, count in zip(BOUNDS_S, self._counts, strict=False):
            if bound > most:
                break
            left -= count
            if (this := bound + price * left / total) < cost:
                best, cost = bound, this
        return best
