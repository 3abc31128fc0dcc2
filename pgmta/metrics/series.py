"""A series of figures: its name, its labels, and its values in plain numbers."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

type Value = float | list[float]
"""A number; of a histogram the observations of each bucket, those above the last, and the sum."""

type Values = dict[str, dict[tuple[str, ...], Value]]
"""The values of each series, by the values of its labels."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets for steps that take milliseconds to seconds."""

WAITS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Buckets for what may wait for hours."""

NUMBERS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Buckets for sizes of groups."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series as Prometheus knows it. A counter has `_total` at the end of its name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


PROCESS_SERIES = (
    Series("process_cpu_seconds_total", "counter", "CPU time of the processes of this daemon."),
    Series("process_resident_memory_bytes", "gauge", "Resident memory of these processes."),
    Series("process_open_fds", "gauge", "Open file descriptors of these processes."),
    Series("pgmta_processes", "gauge", "Processes whose figures are summed here."),
)
"""The series of every daemon about its processes."""

COMMON_SERIES = (
    Series("pgmta_build_info", "gauge", "Always 1; the labels say what runs.",
           ("daemon", "version", "python")),
    Series("pgmta_ready", "gauge", "1 if the daemon serves, as /readyz says it; else 0."),
    *PROCESS_SERIES,
)  # fmt: skip
"""The series of every daemon."""


class Histogram:
    """Counts observations by size. It costs less than a µs, so a hot path may have it."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations of each bucket, and those above the last one."""
        self.sum = 0.0
        """The sum of all observations."""

    def observe(self, size: float) -> None:
        """Count an observation."""
        self.counts[bisect_left(self._bounds, size)] += 1
        self.sum += size

    @property
    def value(self) -> list[float]:
        """The value of the series."""
        return [*self.counts, self.sum]


def add(total: Values, more: Values) -> None:
    """Add values to a total, one by one: those of several processes are summed."""
    for name, values in more.items():
        sums = total.setdefault(name, {})
        for labels, value in values.items():
            before = sums.get(labels)
            if isinstance(value, list):
                old = before if isinstance(before, list) else [0.0] * len(value)
                sums[labels] = [a + b for a, b in zip(old, value, strict=True)]
            else:
                sums[labels] = (before if isinstance(before, (int, float)) else 0.0) + value


def without_gauges(catalogue: Iterable[Series], values: Values) -> Values:
    """Return what stays of a process that has ended: its counters and histograms."""
    kept = {series.name for series in catalogue if series.kind != "gauge"}
    return {name: value for name, value in values.items() if name in kept}


def dump(values: Mapping[str, Mapping[tuple[str, ...], Value]]) -> bytes:
    """Return values in one line of JSON, for another process."""
    text = {
        name: [(labels, value) for labels, value in each.items()] for name, each in values.items()
    }
    return json.dumps(text, separators=(",", ":")).encode() + b"\n"


def load(line: bytes) -> Values:
    """Return the values of such a line. Raises ValueError."""
    found = cast(dict[str, list[tuple[list[str], Value]]], json.loads(line))
    return {name: {tuple(labels): value for labels, value in each} for name, each in found.items()}


@dataclass(frozen=True, slots=True)
class MoreFigures:
    """Figures of a feature, for the page of a process: its series, and their present values."""

    series: Sequence[Series]
    read: Callable[[], Values]
