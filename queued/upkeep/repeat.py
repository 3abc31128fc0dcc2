"""Repeats a duty for as long as the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.schema import Schema

log = get("upkeep")

_AGAIN = 10.0  # seconds after a failure, at most


class Duty(Protocol):
    """Periodic work."""

    async def do(self) -> None:
        """Do it once. Raises StoreUnavailable, psycopg.Error."""

    def pause(self) -> float:
        """Return the seconds until it is due again."""


class Turns(Protocol):
    """Divides the work of several processes."""

    def due_in(self, every: float) -> float:
        """Return the seconds until a duty of all processes is due in this one."""


@dataclass(frozen=True, slots=True)
class RegularDuty:
    """A duty that is done every `every` seconds while the schema fits.

    With `turns`, the process whose turn it is does it, and the others do it less often.
    """

    every: float
    work: Callable[[], Awaitable[None]]
    schema: Schema
    turns: Turns | None = None

    async def do(self) -> None:
        """Do the work. Raises SchemaMismatch, and the errors of the work."""
        self.schema.require()
        await self.work()

    def pause(self) -> float:
        """Return the seconds until it is due again."""
        return self.turns.due_in(self.every) if self.turns else self.every


async def repeat(name: str, duty: Duty, after: float = 0.0) -> None:
    """Do a duty again and again until cancelled, at first after `after` seconds.

    The first of several failures is logged. A duty that failed is tried again within 10 s.
    """
    failed = False
    await asyncio.sleep(after)
    while True:
        try:
            await duty.do()
            pause, failed = duty.pause(), False
        except (StoreUnavailable, psycopg.Error) as error:
            if not failed:
                log.warning("upkeep failed", duty=name, reason=faults.words(error))
            pause, failed = min(duty.pause(), _AGAIN), True
        await asyncio.sleep(pause)
