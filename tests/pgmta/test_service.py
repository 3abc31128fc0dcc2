"""Tasks that a daemon does not wait for."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from pgmta.service import report_error


async def test_a_part_that_fails_is_in_the_log_and_stops_its_daemon() -> None:
    async def work(error: Exception | None) -> None:
        if error:
            raise error

    with capture_logs() as log:
        stop = asyncio.Event()
        fine, away = asyncio.create_task(work(None)), asyncio.create_task(asyncio.Event().wait())
        broken = asyncio.create_task(work(ValueError("a defect")))
        for name, task in {"fine": fine, "away": away, "broken": broken}.items():
            report_error(name, task, stop if task is broken else None)
        away.cancel()
        await asyncio.wait_for(stop.wait(), 60)
    with pytest.raises(ValueError, match="a defect"):
        broken.result()
    assert [(line["event"], line["part"]) for line in log] == [
        ("a part of the process failed", "broken")
    ]
