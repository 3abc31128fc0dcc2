"""A worker that holds, quarantines, releases, retries or deletes the rows it matches."""

from __future__ import annotations

import asyncio

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.store.changes.change import BATCH, WorkerChanges
from pgmta.store.changes.row_change import RowChange
from pgmta.store.schema import Schema

log = get("worker")

_BACKOFF = 1.0  # seconds, while PostgreSQL is away or refuses


class RowWorker:
    """Repeats a change every `every` seconds, in batches of `size` rows while there are more."""

    def __init__(
        self,
        name: str,
        changes: WorkerChanges,
        change: RowChange,
        every: float,
        schema: Schema | None = None,
        size: int = BATCH,
    ) -> None:
        self.name = name
        self.handled = 0
        self._changes = changes
        self._change = change
        self._every = every
        self._schema = schema or Schema()
        self._size = size
        self._reported = ""  # the last failure in the log

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            pause = await self._round()
            await asyncio.sleep(pause)

    async def _round(self) -> float:
        """Change every row that matches now; return the seconds to the next round."""
        if self._schema.problem:
            return _BACKOFF
        done = 0
        try:
            async for rows in self._changes.batches(self._change, self._size):
                done += rows
                self.handled += rows
        except (StoreUnavailable, psycopg.Error) as error:
            reason = faults.words(error)
            if reason != self._reported:
                log.warning("can't change rows", worker=self.name, reason=reason)
            self._reported = reason
            return _BACKOFF
        finally:
            if done:
                log.info(self._change.action.value, worker=self.name, rows=done)
        self._reported = ""
        return self._every
