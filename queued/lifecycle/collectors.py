"""The collectors of a queued process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from pgmta.compose.token import KeyRings
from pgmta.store.lifecycle.collections import SESSION
from queued.config.collector import Collector
from queued.lifecycle.collector_loop import CollectorLoop
from queued.lifecycle.outputs import LineOutput, Output, QueueOutput, json_frame
from queued.process.queued_process import QueuedProcess


def collectors(process: QueuedProcess, names: Sequence[str] = ()) -> list[CollectorLoop]:
    """Return the collectors of a process; `names` chooses some, none means all.

    They sign with the keys of the configuration that the process has when a batch is made.
    """

    def keys() -> KeyRings:
        return KeyRings.of(process.config.tokens)

    def output(collector: Collector) -> Output:
        if collector.output == "queue":
            return QueueOutput(collector, keys)
        return LineOutput(sys.stdout, keys, json_frame)

    return [
        CollectorLoop(
            each, process.name,
            partial(process.resources.connect, f"collector {each.name}", SESSION), output(each),
        )
        for each in process.config.collectors if not names or each.name in names
    ]  # fmt: skip
