"""The settler wakes the duty that reports for rows in REPORT only, and for all of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgmta.model import Item, Outcome, Reply
from pgmta.states import Event, Status, after
from pgmta.store.queue.settle import Settlements
from queued.worker.leases import Leases
from queued.worker.settler import Settler

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Taken:
    """Takes all outcomes, and knows no lease."""

    async def settle(self, batch: list[Outcome], again: bool) -> set[int]:
        """Return the rows that changed: all of them."""
        return {outcome.item.id for outcome in batch}

    def drop(self, outcome: Outcome) -> None:
        """Forget a lease."""


@pytest.mark.parametrize("on_failed", ["hold", "remove", "bounce"])
@pytest.mark.parametrize("report", ["", "relayed"])
@pytest.mark.parametrize(
    "event", [Event.DELIVERED, Event.FAIL, Event.DEFER, Event.UNKNOWN, Event.SUPPRESS]
)
async def test_only_rows_in_report_wake_the_duty(event: Event, report: str, on_failed: str) -> None:
    report = report if event is Event.DELIVERED else ""
    item = Item(1, 2, "s@a.example", "r@b.example", "b.example", 1, NOW, 3, on_failed=on_failed)
    outcome = Outcome(item, event, Reply(550, "No"), started=NOW, ended=NOW, report=report)
    calls: list[Any] = []
    taken = Taken()
    settler = Settler(
        cast(Settlements, taken), cast(Leases, taken), calls.append, lambda: calls.append("report")
    )
    task = asyncio.create_task(settler.run())
    settler.put_outcome(outcome)
    await settler.flush()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    reported = after(event, once=False, on_failed=on_failed, report=report) is Status.REPORT
    assert ("report" in calls) == reported
