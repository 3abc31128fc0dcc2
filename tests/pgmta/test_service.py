"""Tasks that a daemon does not wait for."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from pgmta import service
from pgmta.errors import FormerDatabase
from pgmta.service import report_error, start_part


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


async def test_a_part_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no duty of a daemon is missing after a defect, until someone restarts the daemon."""
    monkeypatch.setattr(service, "_RESTART_PAUSES_S", (0.01, 0.02))
    begun, stop, last = 0, asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 5:
            raise ValueError(f"defect {begun}")
        last.set()
        await asyncio.Event().wait()

    with capture_logs() as log:
        task = start_part("duty", work, stop)
        await asyncio.wait_for(last.wait(), 60)
    assert [line["after"] for line in log] == [0.01, 0.02, 0.02, 0.02]
    assert {line["part"] for line in log} == {"duty"}
    assert not stop.is_set()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_former_database_ends_the_daemon() -> None:
    async def work() -> None:
        raise FormerDatabase

    stop = asyncio.Event()
    task = start_part("heartbeat", work, stop)
    await asyncio.wait_for(stop.wait(), 60)
    with pytest.raises(FormerDatabase):
        task.result()
