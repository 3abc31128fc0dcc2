"""Workers that hold, quarantine, release, retry or delete what they match."""

from __future__ import annotations

import asyncio

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.schema import Schema
from pgmta.store.sweep import Sweep, Sweeps

log = get("sweep")

_BACKOFF = 1.0  # seconds, while PostgreSQL is away or refuses


class Sweeper:
    """Repeats a sweep every `every` seconds, and batch after batch while there is more."""

    def __init__(
        self,
        name: str,
        sweeps: Sweeps,
        sweep: Sweep,
        every: float,
        schema: Schema | None = None,
    ) -> None:
        self.name = name
        self.sweep = sweep
        self.handled = 0
        self._sweeps = sweeps
        self._every = every
        self._schema = schema or Schema()
        self._told = ""  # of what keeps it from its work

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            pause = await self._round()
            await asyncio.sleep(pause)

    async def _round(self) -> float:
        if self._schema.problem:
            return _BACKOFF
        done = 0
        try:
            async for rows in self._sweeps.batches(self.sweep):
                done += rows
                self.handled += rows
        except (StoreUnavailable, psycopg.Error) as error:
            reason = faults.words(error)
            if reason != self._told:
                log.warning("can't sweep", worker=self.name, reason=reason)
            self._told = reason
            return _BACKOFF
        finally:
            if done:
                log.info(self.sweep.action, worker=self.name, rows=done)
        self._told = ""
        return self._every
