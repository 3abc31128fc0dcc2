"""One change of many rows: which action, for which rows, by whom (docs/decisions/changes.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pgmta.action import ROW_ACTIONS, RowAction
from pgmta.config.types import MAX_DURATION_S


@dataclass(frozen=True, slots=True)
class RowChange:
    """An action for the rows that the condition `where` matches.

    `who` does it: an operator, a worker or a rule. `release_after` is in seconds, None means that
    a hold lasts until an operator releases it. The other values belong to some actions only.

    Workers alone use the last four: `older` is the least age of a row in seconds, `owner` names
    the condition in logs, such as `rule spam`. With `rule`, that standing rule has to be there.
    `holder` is what holds the rows, as in `queue.held_under`.
    """

    action: str
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
    def rows(self) -> RowAction:
        """Which rows the action takes."""
        return ROW_ACTIONS[self.action]

    def details(self) -> dict[str, Any]:
        """Return what the function queue_change_rows and the audit table get."""
        length = self.release_after
        values = {
            "reason": self.reason,
            # a standing rule that was inserted by SQL may name any length
            "release_after": None if length is None else f"{min(length, MAX_DURATION_S)} s",
            "quarantine": self.quarantine,
            "priority": self.priority,
            "metadata": self.metadata or None,
            "unset": self.unset or None,
            "holder": self.holder,
        }
        return {name: value for name, value in values.items() if value is not None}
