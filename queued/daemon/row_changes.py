"""Changes of rows and standing rules, from the workers of queued.yaml (pure)."""

from __future__ import annotations

from pgmta.action import STANDING
from pgmta.store.admin.workers import Rule
from pgmta.store.changes.row_change import RowChange
from queued.config import Worker


def is_rule(worker: Worker) -> bool:
    """Return whether a worker's condition is a standing rule."""
    return worker.action in STANDING and not worker.older


def rule(worker: Worker, where: str | None) -> Rule:
    """Return the standing rule of a worker."""
    return Rule(
        worker.name,
        worker.action.value,
        where or "true",
        worker.reason or f"worker {worker.name}",
        worker.quarantine,
        worker.release_after,
    )


def row_change(worker: Worker, where: str | None, process: str) -> RowChange:
    """Return the change that a row worker of a process repeats."""
    standing = is_rule(worker)
    return RowChange(
        action=worker.action,
        where=where or "true",
        who=f"{worker.name}@{process}",
        reason=worker.reason or f"worker {worker.name}",
        older=worker.older or 0.0,
        release_after=worker.release_after,
        quarantine=worker.quarantine,
        owner=f"{'rule' if standing else 'worker'} {worker.name}",
        rule=worker.name if standing else None,
        holder=f"worker {worker.name}" if worker.action in STANDING and not standing else None,
    )
