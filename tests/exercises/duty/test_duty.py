"""queued does a duty that is in the list."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from pgmta.service import Signals
from queued.config import QueuedConfig
from queued.daemon.daemon import Daemon
from queued.upkeep.duties import DUTIES
from tests.exercises.duty.depth import DUTY
from tests.support.waiting import eventually


async def test_queued_does_a_duty_that_is_listed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queued.upkeep.duties.DUTIES", [*DUTIES, DUTY])
    config, signals = QueuedConfig(), Signals()
    with capture_logs() as logs:
        running = asyncio.create_task(Daemon(config, database, lambda: config, signals).run())
        await eventually(lambda: any(log["event"] == "depth" for log in logs))
        signals.stop.set()
        await running
    assert [log["rows"] for log in logs if log["event"] == "depth"] == [0]
