"""Rows that are put off keep the number of their suspension: its end gives them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmta.model import Outcome
from pgmta.postgres.binary import Bigints
from pgmta.store.queries import feature_queries
from pgmta.store.queue.companion import QueueColumn, SettleCompanion
from pgmta_features.suspensions.store import SUSPENDED


def _suspensions(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    waits = [o.reason_to_wait for o in outcomes]
    if not any(waits):
        return {}
    numbers = (each.number if each and each.kind == SUSPENDED else 0 for each in waits)
    return {"suspension": Bigints(numbers)}


SETTLING = SettleCompanion(
    _suspensions,
    column=QueueColumn("suspension", "bigint", feature_queries("suspensions")["settled"]),
)
