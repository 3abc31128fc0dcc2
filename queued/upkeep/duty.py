"""A duty: work that is repeated for as long as the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.service import together
from pgmta.store.admin.upkeep import Look
from queued.process.queued_process import QueuedProcess

log = get("upkeep")

_MAX_RETRY_PAUSE_S = 10.0  # after a failure

Work = Callable[[], Awaitable[None]]
"""Does a duty once. Raises StoreUnavailable, psycopg.Error."""


@dataclass(frozen=True, slots=True)
class Duty:
    """Work of each process, every `every` seconds while the schema fits.

    `make` returns the work of one process. With `in_turn`, the process whose turn it is does it,
    and the others do it less often. It is done at first after `first` seconds. With a `look` it is
    done while that finds that there may be work.
    """

    name: str
    every: float
    make: Callable[[QueuedProcess], Work]
    in_turn: bool = False
    first: float = 0.0
    look: Look | None = None

    async def run(self, process: QueuedProcess) -> None:
        """Repeat it until cancelled."""
        work, every = self.make(process), self.every

        async def do() -> None:
            process.schema.require()
            if not self.look or await process.tasks_due.may(self.look):
                await work()

        def pause() -> float:
            return together(process.due_in(every) if self.in_turn else every)

        await repeat(self.name, do, pause, self.first)


async def repeat(name: str, do: Work, pause: Callable[[], float], first: float = 0.0) -> None:
    """Do the work again and again until cancelled, at first after `first` seconds.

    `pause` returns the seconds until it is due again. The first of several failures is logged.
    Work that failed is tried again within 10 s.
    """
    failed = False
    await asyncio.sleep(first)
    while True:
        try:
            await do()
            seconds, failed = pause(), False
        except (StoreUnavailable, psycopg.Error) as error:
            if not failed:
                log.warning("upkeep failed", duty=name, reason=faults.one_line(error))
            seconds, failed = min(pause(), _MAX_RETRY_PAUSE_S), True
        await asyncio.sleep(seconds)
