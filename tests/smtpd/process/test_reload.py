"""SIGHUP for the master of smtpd, after a reload that failed by a defect."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from pgmta import service
from pgmta.service import ServiceManager, Signals, start_part
from smtpd.process.master import Master
from tests.support.waiting import eventually


class Supervisors:
    """Replaces its process at each SIGHUP but the first."""

    def __init__(self) -> None:
        self.asked = 0

    async def replace(self) -> bool:
        """Fail at first."""
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("can't start new thread")
        return True


class Manager(ServiceManager):
    """Keeps what systemd would hear."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def _send(self, *lines: str) -> None:
        self.heard.append(lines[0])


def _ready(manager: Manager, times: int) -> bool:
    return manager.heard.count("READY=1") == times


async def test_a_reload_that_fails_leaves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_RESTART_PAUSES_S", (0.01, 0.02))

    async def reads(_: object) -> bool:
        return True

    monkeypatch.setattr(Master, "_read_again", lambda *_: reads(None))
    master = Master.__new__(Master)
    supervisor, manager, signals = Supervisors(), Manager(), Signals()
    master._supervisors, master._manager = cast(Any, [supervisor]), manager
    task = start_part("reload", lambda: master._reloads(signals))
    for number in (1, 2):
        signals.reload.set()
        await eventually(partial(_ready, manager, number))
    assert supervisor.asked == 2
    assert manager.heard == ["RELOADING=1", "READY=1"] * 2  # systemd waits for each end
    task.cancel()
    await asyncio.wait([task])
