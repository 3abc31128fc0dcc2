"""One change of many rows: which action, for which rows, by whom (docs/decisions/0025)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pgmta.action import STANDING, Action
from pgmta.config.types import LONGEST
from pgmta.store.queue.filters import MALFORMED
from pgmta.store.queue.guard import ACTIVE

TAKES = {
    Action.HOLD: "status <> 'HOLD'",
    Action.QUARANTINE: "true",
    Action.RELEASE: "status = 'HOLD'",
    Action.RETRY: "status IN ('QUEUED', 'DEFERRED')",
    Action.BOUNCE: "status NOT IN ('DELETE', 'REPORT')",
    Action.DELETE: "status <> 'DELETE'",
    Action.SET: "true",
}
"""Which rows an operator's action takes. The function queue_takes of the database has the same."""

WAITING = {
    Action.HOLD: ACTIVE,
    Action.QUARANTINE: ACTIVE,
    Action.RELEASE: TAKES[Action.RELEASE],
    Action.RETRY: TAKES[Action.RETRY],
    Action.BOUNCE: ACTIVE,
    Action.DELETE: "status <> 'REPORT'",
}
"""Which rows a worker's action takes, by their status."""

REPEATED = {
    # a release of a malformed row leaves it on hold, and makes a hold that ends by itself last
    Action.RELEASE: f"(hold_until <= now() OR NOT {MALFORMED})",
    Action.RETRY: "next_attempt > now()",
}
"""Conditions that keep a worker from changing the same row again and again."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """An action for the rows that the condition `where` matches.

    `who` does it: an operator, a worker or a rule. `release_after` is in seconds, None means that
    a hold lasts until an operator releases it. The other values belong to some actions only.

    Workers alone use the last four: `older` is the least age of a row in seconds, `owner` names
    the condition in logs, such as `rule spam`. With `rule`, that standing rule has to be there.
    `holder` is what holds the rows, as in `queue.held_under`.
    """

    action: Action
    where: str
    who: str
    reason: str | None = None
    release_after: float | None = None
    quarantine: str | None = None
    priority: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    older: float = 0.0
    owner: str = "the condition"
    rule: str | None = None
    holder: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the action also changes rows on which the condition fails: a hold does."""
        return self.action in STANDING

    @property
    def releases(self) -> bool:
        """Whether rows are due afterwards, so that workers have to be woken."""
        return self.action in (Action.RELEASE, Action.RETRY)

    def details(self) -> dict[str, Any]:
        """Return what the function queue_change_rows and the audit table get."""
        length = self.release_after
        values = {
            "reason": self.reason,
            # a standing rule by SQL may name any length
            "release_after": None if length is None else f"{min(length, LONGEST)} s",
            "quarantine": self.quarantine,
            "priority": self.priority,
            "metadata": self.metadata or None,
            "unset": self.unset or None,
            "holder": self.holder,
        }
        return {name: value for name, value in values.items() if value is not None}
