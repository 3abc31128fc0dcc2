"""Counts of the responses of `queued web`, in plain numbers."""

from __future__ import annotations

from collections import Counter

from pgmta.metrics.series import SECONDS, Histogram


class SiteFigures:
    """Counts responses by path and status code; paths that there are not share one name."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, str]] = Counter()
        self.seconds = Histogram(SECONDS)

    def count(self, path: str, code: int, seconds: float) -> None:
        """Count a response."""
        self.responses[path, str(code)] += 1
        self.seconds.observe(seconds)
