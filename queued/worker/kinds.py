"""The kinds of workers, by action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from pgmta.action import Action
from pgmta.service import Part
from pgmta.store.records.traces import Trace
from queued.config import QueuedConfig, Worker
from queued.process.queued_process import QueuedProcess
from queued.worker.claim_loop import Claimer
from queued.worker.delivery_worker import DeliveryWorker
from queued.worker.row_worker import RowWorker


class Runner(Protocol):
    """A worker that runs."""

    name: str
    loops: list[Claimer]
    """They wake for mail and claim it."""

    @property
    def handled(self) -> int:
        """Rows done since the start."""

    @property
    def leased(self) -> int | None:
        """Rows that it has leased; None: it leases none."""

    def parts(self) -> dict[str, Part]:
        """Return the work that runs until it is cancelled; `drain` stops the loops themselves."""

    def configure(self, config: QueuedConfig) -> None:
        """Use another configuration from now on."""

    def set_traces(self, traces: Sequence[Trace]) -> None:
        """Use these traces from now on."""

    async def drain(self, running: Sequence[asyncio.Task[None]]) -> None:
        """End the loops, whose tasks are `running`, and write every outcome."""


KINDS: dict[str, Callable[[QueuedProcess, Worker], Runner]] = {
    Action.DELIVER: DeliveryWorker,
}
"""Workers by their action. Any other action changes rows."""


def make_worker(process: QueuedProcess, worker: Worker) -> Runner:
    """Return the worker of one entry of `workers`."""
    return KINDS.get(worker.action, RowWorker)(process, worker)
