"""The collectors of a queued process, and their figures."""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import partial

from pgmta.compose.token import KeyRings
from pgmta.metrics.series import MoreFigures, Series, Values
from pgmta.service import Part
from pgmta_features.lifecycle.check import check_collectors
from pgmta_features.lifecycle.collections import SESSION
from pgmta_features.lifecycle.collector_loop import OUTCOMES, CollectorLoop
from pgmta_features.lifecycle.config import Collector, collectors_of
from pgmta_features.lifecycle.outputs import LineOutput, Output, QueueOutput, json_frame
from queued.config import QueuedConfig
from queued.process.named_loops import NamedLoops
from queued.process.queued_process import QueuedProcess

SERIES = (
    Series("pgmta_queued_collector_tokens_total", "counter",
           "Tokens by collector and outcome: collected, refused for a value of their account, "
           "expired before their mail was made, set aside because the database refuses them.",
           ("collector", "outcome")),
    Series("pgmta_queued_collector_sum_used_up", "gauge",
           "1 while the sum of the month of a collector is used up.", ("collector",)),
    Series("pgmta_queued_collector_batch_size", "gauge",
           "Tokens of the last batch of a collector.", ("collector",)),
    Series("pgmta_queued_collector_timeout_seconds", "gauge",
           "For how long new tokens wait for others, or for the budget; 0: they are taken at once.",
           ("collector",)),
)  # fmt: skip
"""Their figures."""


def _begin(process: QueuedProcess, names: Collection[str]) -> list[Part]:
    """Return the loops of a process's collectors; `names` chooses some, none means all.

    They sign with the keys of the configuration that the process has when a batch is made.
    """

    def keys() -> KeyRings:
        return KeyRings.of(process.config.tokens)

    def output(collector: Collector) -> Output:
        if collector.output == "queue":
            return QueueOutput(collector, keys)
        return LineOutput(collector, sys.stdout, keys, json_frame)

    loops = [
        CollectorLoop(
            each, process.name,
            partial(process.resources.connect, f"collector {each.name}", SESSION), output(each),
        )
        for each in collectors_of(process.config) if not names or each.name in names
    ]  # fmt: skip
    process.more_figures.append(MoreFigures(SERIES, partial(_values, loops)))
    return [loop.run for loop in loops]


def _values(loops: Collection[CollectorLoop]) -> Values:
    return {
        SERIES[0].name: {
            (loop.name, outcome): float(loop.tokens[outcome])
            for loop in loops for outcome in OUTCOMES
        },
        SERIES[1].name: {(loop.name,): float(loop.spent) for loop in loops},
        SERIES[2].name: {(loop.name,): float(loop.batch_size) for loop in loops},
        SERIES[3].name: {(loop.name,): loop.timeout for loop in loops},
    }  # fmt: skip


def _names(config: QueuedConfig) -> list[str]:
    return [collector.name for collector in collectors_of(config)]


COLLECTORS = NamedLoops("collector", _names, _begin, check_collectors)
