"""Deletes budgets of routes that no mail uses any more: there may be one for each domain."""

from __future__ import annotations

from pgmta.logs import get
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

from .reservations import tidy

_INTERVAL_S = 3600.0

log = get("upkeep")


def _tidy(process: QueuedProcess) -> Work:
    async def work() -> None:
        if gone := await tidy(process.link):
            log.info("unused budgets deleted", number=gone)

    return work


DUTY = Duty("budgets", _INTERVAL_S, _tidy, in_turn=True, first=60.0)
