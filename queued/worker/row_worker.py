"""A worker that changes the rows it matches; its condition may be a standing rule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg

from pgmta.action import standing
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.service import Part
from pgmta.store.admin.workers import Rule
from pgmta.store.changes.row_change import RowChange
from pgmta.store.records.traces import Trace
from queued.config import QueuedConfig, Worker
from queued.process.queued_process import QueuedProcess
from queued.worker.claim_loop import Claimer

log = get("worker")

_RETRY_PAUSE_S = 1.0  # while PostgreSQL is away or refuses


class RowWorker:
    """Repeats a change every `worker.every` seconds."""

    def __init__(self, process: QueuedProcess, worker: Worker) -> None:
        self.name = worker.name
        self.handled = 0
        self.leased = None  # such a worker has no leases, because each change is one transaction
        self.loops: list[Claimer] = []
        self._process = process
        self._worker = worker
        self._change = row_change(worker, process.where(worker), process.name)
        self._reported = ""  # the failure that the log had last

    def parts(self) -> dict[str, Part]:
        """Return the work, which runs until it is cancelled."""
        return {f"worker {self.name}": self._run}

    def configure(self, config: QueuedConfig) -> None:
        """Do nothing: workers need a restart."""

    def set_traces(self, traces: Sequence[Trace]) -> None:
        """Do nothing: traces are about attempts."""

    async def drain(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Do nothing: a change is a transaction."""

    async def _run(self) -> None:
        while True:
            pause = await self._round()
            await asyncio.sleep(pause)

    async def _round(self) -> float:
        """Change every row that matches now; return the seconds to the next round."""
        if self._process.schema.problem:
            return _RETRY_PAUSE_S
        done = 0
        try:
            async for rows in self._process.changes.batches(self._change, self._worker.batch):
                done += rows
                self.handled += rows
        except (StoreUnavailable, psycopg.Error) as error:
            reason = faults.one_line(error)
            if reason != self._reported:
                log.warning("can't change rows", worker=self.name, reason=reason)
            self._reported = reason
            return _RETRY_PAUSE_S
        finally:
            if done:
                log.info(self._change.action, worker=self.name, rows=done)
        self._reported = ""
        return self._worker.every


def is_rule(worker: Worker) -> bool:
    """Return whether a worker's condition is a standing rule."""
    return standing(worker.action) and not worker.older


def rule(worker: Worker, where: str | None) -> Rule:
    """Return the standing rule of a worker."""
    return Rule(
        worker.name,
        worker.action,
        where or "true",
        worker.reason or f"worker {worker.name}",
        worker.quarantine,
        worker.release_after,
    )


def row_change(worker: Worker, where: str | None, process: str) -> RowChange:
    """Return the change that a row worker of a process repeats."""
    by_rule = is_rule(worker)
    return RowChange(
        action=worker.action,
        where=where or "true",
        who=f"{worker.name}@{process}",
        reason=worker.reason or f"worker {worker.name}",
        older=worker.older or 0.0,
        release_after=worker.release_after,
        quarantine=worker.quarantine,
        owner=f"{'rule' if by_rule else 'worker'} {worker.name}",
        rule=worker.name if by_rule else None,
        holder=f"worker {worker.name}" if standing(worker.action) and not by_rule else None,
    )
