"""The actions that change rows of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

IS_ACTIVE = "status IN ('QUEUED', 'DEFERRED', 'SENDING')"
"""The rows that claims look at, as SQL."""

IS_MALFORMED = "queue_malformed(sender, recipient, domain)"
"""The rows with control characters in an address, as SQL. They can only be deleted."""


class Action(StrEnum):
    """Actions of operators, workers and rules on rows."""

    DELIVER = "deliver"
    HOLD = "hold"
    QUARANTINE = "quarantine"
    DELETE = "delete"
    RELEASE = "release"
    RETRY = "retry"
    BOUNCE = "bounce"
    SET = "set"


@dataclass(frozen=True, slots=True)
class RowAction:
    """Which rows an action takes, as conditions in SQL, and how a worker changes them."""

    takes: str
    """Rows for an operator, as the function queue_takes has them; '': no operator does it."""
    waiting: str
    """Rows for a worker; '': no worker does it."""
    repeated: str | None = None
    """Keeps a worker from changing the same row again and again."""
    standing: bool = False
    """Whether its condition is a standing rule: a row that matches is never claimed."""
    releases: bool = False
    """Whether rows are due afterwards, so that workers have to be woken."""
    statement: str | None = None
    """How a worker changes the rows `found`, if the function queue_change_rows does not do it.

    Its one row has the number of rows found, and of those changed.
    """


_IS_HELD = "status = 'HOLD'"
_MAY_GO = "status IN ('QUEUED', 'DEFERRED') AND (send_at IS NULL OR send_at <= now())"

ROW_ACTIONS: dict[str, RowAction] = {
    # A key of the HTTP API may release what it holds, but nothing that an operator holds. Rules
    # take the row after that release.
    Action.HOLD: RowAction(
        "(status <> 'HOLD' OR held_by ^@ 'key:' AND held_under IS NULL)", IS_ACTIVE, standing=True
    ),
    Action.QUARANTINE: RowAction("true", IS_ACTIVE, standing=True),
    Action.DELETE: RowAction("status <> 'DELETE'", "status <> 'REPORT'"),
    # Releasing a malformed row leaves it on hold, and a hold that would end by itself then lasts.
    Action.RELEASE: RowAction(
        _IS_HELD, _IS_HELD, f"(hold_until <= now() OR NOT {IS_MALFORMED})", releases=True
    ),
    Action.RETRY: RowAction(_MAY_GO, _MAY_GO, "next_attempt > now()", releases=True),
    Action.BOUNCE: RowAction("status NOT IN ('DELETE', 'REPORT')", IS_ACTIVE),
    Action.SET: RowAction("true", ""),
}
"""The actions by name. A new one is an entry here."""


def standing(action: str) -> bool:
    """Return whether the condition of an action is a standing rule."""
    return action in ROW_ACTIONS and ROW_ACTIONS[action].standing


def worker_actions() -> list[str]:
    """Return what a worker may do."""
    return [Action.DELIVER.value, *(str(n) for n, rows in ROW_ACTIONS.items() if rows.waiting)]
