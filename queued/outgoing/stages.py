"""The stages of outgoing mail, in order. A new one is a file with a stage, and its name here."""

from __future__ import annotations

from queued.outgoing.check_stage import CheckStage
from queued.outgoing.compose_stage import ComposeStage
from queued.outgoing.deadline_stage import DeadlineStage
from queued.outgoing.returned_stage import ReturnedStage
from queued.outgoing.rewrite_stage import RewriteStage
from queued.outgoing.sign_stage import SignStage
from queued.outgoing.stage import OutgoingStage

STAGES: list[type[OutgoingStage]] = [
    ReturnedStage,
    DeadlineStage,
    ComposeStage,
    RewriteStage,
    CheckStage,
]
"""The stages before the destination is asked for room."""

LAST: list[type[OutgoingStage]] = [SignStage]
"""The stages of mail whose destination has room: they take long."""
