"""The page of figures in the text format of Prometheus, by its own library."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from pgmta.metrics.series import PROCESS_SERIES, Series, Values

_NAMES = {series.name for series in PROCESS_SERIES}
_process = ProcessCollector(registry=None)


def process_values() -> Values:
    """Return the figures of this process, as the system counts them."""
    samples = (sample for metric in _process.collect() for sample in metric.samples)
    values: Values = {s.name: {(): s.value} for s in samples if s.name in _NAMES}
    return values | {"pgmta_processes": {(): 1.0}}


def build_values(daemon: str, version: str, *, ready: bool) -> Values:
    """Return what the page says about the program."""
    labels = daemon, version, platform.python_version()
    return {"pgmta_build_info": {labels: 1.0}, "pgmta_ready": {(): float(ready)}}


class _Page(Collector):
    def __init__(self, catalogue: Iterable[Series], values: Values) -> None:
        self._catalogue = catalogue
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for series in self._catalogue:
            if family := _family(series, self._values):
                yield family


def _family(series: Series, values: Values) -> Metric | None:
    found = values.get(series.name)
    if not found:
        return None
    name, text, labels = series.name, series.help, series.labels
    if series.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for key, value in found.items():
            assert isinstance(value, list)  # noqa: S101 - for the type checker
            histogram.add_metric(key, _buckets(series.bounds, value), sum_value=value[-1])
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    family = (CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily)(
        name, text, labels=labels
    )
    for key, value in found.items():
        assert not isinstance(value, list)  # noqa: S101 - for the type checker
        family.add_metric(key, value)
    return family


def _buckets(bounds: Sequence[float], value: list[float]) -> list[tuple[str, float]]:
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, accumulate(value[:-1]), strict=True))


def page(catalogue: Iterable[Series], values: Values) -> bytes:
    """Return the page; a series without values is not in it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(catalogue, values))
    return generate_latest(registry)
