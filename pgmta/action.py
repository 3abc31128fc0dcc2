"""The actions that change rows of the queue."""

from __future__ import annotations

from enum import StrEnum


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


STANDING = (Action.HOLD, Action.QUARANTINE)
"""Actions whose condition is a standing rule: a row that matches is never claimed."""
