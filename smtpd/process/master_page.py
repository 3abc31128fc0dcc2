"""The figures and the health of one smtpd: those of its processes together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

from pgmta.metrics.exposition import build_values, page, process_values
from pgmta.metrics.series import Values, add
from smtpd.process.supervisor import Supervisor
from smtpd.server.smtpd_series import SERIES


class MasterPage:
    """Asks all processes, and sums. A process that has ended stays in the sums of counters."""

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self._supervisors = supervisors

    async def scrape(self, ready: bool) -> bytes:
        """Return the page for Prometheus: the figures that `problem` has learned."""
        total: Values = {}
        for supervisor in self._supervisors:
            add(total, supervisor.past)
            for pipe in supervisor.pipes:
                add(total, pipe.values)
        add(total, process_values())
        total |= build_values("smtpd", version("pgmta"), ready=ready)
        return page(SERIES, total)

    async def problem(self) -> str:
        """Return why no process takes mail; '' if one does."""
        pipes = [
            pipe for supervisor in self._supervisors for pipe in supervisor.pipes if pipe.serves
        ]
        problems = await asyncio.gather(*(pipe.ask_problem() for pipe in pipes))
        if not problems:
            return "no process serves"
        return "" if "" in problems else problems[0]
