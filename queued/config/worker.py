"""One of `workers` in queued.yaml: its action, and the condition that chooses its rows."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from pgmta.action import Action, standing, worker_actions
from pgmta.config.types import Period, Section, Whole, hint

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WORKER_ACTIONS = worker_actions()


def _action(value: Any) -> Any:
    known = worker_actions()
    if value in known:
        return str(value)
    raise ValueError(f"no action {value!r}; {hint(str(value), known)}")


class Worker(Section):
    """One worker: an action, and the condition that chooses its rows."""

    needs_restart: ClassVar[bool] = True

    name: str = Field(default="deliver", description="unique name, in leases, logs and audit")
    action: Annotated[str, BeforeValidator(_action)] = Field(
        default=Action.DELIVER.value,
        description=f"{', '.join(_WORKER_ACTIONS[:-1])} or {_WORKER_ACTIONS[-1]}",
    )
    where: str | None = Field(
        default=None,
        description="SQL condition on columns of queue, checked by PostgreSQL at the start; "
        "absent: every row",
    )
    concurrency: Whole = Field(
        default=500, ge=1, le=10_000, description="deliver: rows leased at a time"
    )
    batch: Whole = Field(
        default=200, ge=1, le=10_000, description="at most this number of rows per statement"
    )
    priority: Whole = Field(
        default=9, ge=0, le=9, description="deliver: only rows of this priority or a lower number"
    )
    every: Period = Field(default=5.0, description="other actions: how often to look")
    older: Period | None = Field(
        default=None, description="other actions: only rows accepted longer ago than this"
    )
    reason: str | None = Field(
        default=None,
        description="hold, quarantine: why; default: the name; bounce: why, for the DSN",
    )
    quarantine: str | None = Field(
        default=None, description="quarantine: the id that goes to metadata._quarantineid"
    )
    release_after: Period | None = Field(
        default=None, description="hold, quarantine: release after this time; absent: never"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Worker:
        if not _NAME.fullmatch(self.name):
            raise ValueError("name: only letters, digits, '_', '.' and '-', at most 64")
        if self.action == Action.QUARANTINE and not self.quarantine:
            raise ValueError("action quarantine needs the key quarantine")
        if self.action != Action.QUARANTINE and self.quarantine:
            raise ValueError("the key quarantine belongs to the action quarantine")
        if not standing(self.action) and self.release_after:
            raise ValueError("release_after belongs to the actions hold and quarantine")
        if self.reason and not (standing(self.action) or self.action == Action.BOUNCE):
            raise ValueError("reason belongs to the actions hold, quarantine and bounce")
        if self.action == Action.BOUNCE and not (self.reason and self.reason.strip()):
            raise ValueError("action bounce needs a reason: the DSN says it to the sender")
        if self.action == Action.DELIVER and self.older:
            raise ValueError("older does not belong to the action deliver")
        if self.action != Action.DELIVER and not (self.where or self.older):
            raise ValueError(f"action {self.action} needs a where: it would take every row")
        return self
