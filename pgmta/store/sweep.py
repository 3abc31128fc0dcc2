"""Batches of rows that are held, released, retried or deleted by a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import psycopg

from pgmta.config.types import LONGEST
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.store.guard import ACTIVE, ALL, RECENT, Condition, Guard, about_a_row
from pgmta.store.pace import Pace
from pgmta.store.queries import bracketed, queries

_ROUND = 100_000  # rows that a sweep finds at once, about; it need not count them

_SQL = queries("sweep")
_SWEEPS = {
    "hold": _SQL["hold"],
    "release": _SQL["release"],
    "retry": _SQL["retry"],
    "delete": _SQL["delete"],
}
_ROWS = {
    "hold": ACTIVE,
    "release": "status = 'HOLD'",
    "retry": "status = 'DEFERRED'",
    "delete": "true",
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is done to which rows. `action` is hold, release, retry or delete.

    Times are in seconds: `older` is the least age of a row, `hold` how long a hold lasts. `owner`
    is whose condition it is, such as `rule spam`. With `rule`, that standing rule has to be there.
    """

    action: str
    where: str
    who: str
    reason: str = ""
    older: float = 0.0
    hold: float | None = None
    quarantine: str | None = None
    batch: int = 1000
    owner: str = "sweep"
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Whether there are rows to delete, holds to release, rules to remove."""

    delete: bool
    release: bool
    expire: bool


class Sweeps:
    """Runs sweeps batch by batch, each batch a transaction of its own."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._guards: dict[tuple[str, Condition], Guard] = {}  # of conditions that have failed

    async def batch(self, sweep: Sweep) -> int:
        """Do one batch and return its number of rows.

        A row on which the condition fails is held by a hold, and left by the others; the log names
        it. Raises StoreUnavailable.
        """
        condition = Condition(sweep.owner, sweep.where)
        guard = self._guards.get((sweep.action, condition))
        for again in (RECENT, ALL, None):
            try:
                return await self._batch(sweep, condition, guard)
            except psycopg.Error as error:
                if again is None or not (about_a_row(error) or faults.about_statement(error)):
                    raise
                guard = guard or Guard(self._link, _ROWS[sweep.action])
                self._guards[sweep.action, condition] = guard
                await guard.find([condition], again)
        raise AssertionError

    async def _batch(self, sweep: Sweep, condition: Condition, guard: Guard | None) -> int:
        params: dict[str, Any] = {
            "who": sweep.who, "reason": sweep.reason, "older": sweep.older,
            "hold": None if sweep.hold is None else min(sweep.hold, LONGEST),  # rules by SQL
            "quarantine": sweep.quarantine, "batch": sweep.batch, "key": None,
        }  # fmt: skip
        where = bracketed(sweep.where)
        if guard and await guard.prepare([condition]):
            failing = "true" if sweep.action == "hold" else "false"
            where = guard.passing(condition, failing=failing, untried="false")
            params |= {**guard.params, "key": condition.key}
        query = _SWEEPS[sweep.action].fill(where=where)
        return len(await self._link.run(query, params))

    async def batches(self, sweep: Sweep) -> AsyncIterator[int]:
        """Do batch after batch until none is left, resting in between; yield each one's rows.

        Raises StoreUnavailable.
        """
        if sweep.rule and not await self._link.run(_SQL["standing"], {"rule": sweep.rule}):
            return
        rows = sweep.batch
        pace = Pace(_ROUND / sweep.batch)
        while rows >= sweep.batch:
            began = time.monotonic()
            rows = await self.batch(sweep)
            worked = time.monotonic() - began
            yield rows
            if rows >= sweep.batch:
                await asyncio.sleep(pace.rest(worked))

    async def run(self, sweep: Sweep) -> int:
        """Do batch after batch until none is left; return the rows. Raises StoreUnavailable."""
        return sum([rows async for rows in self.batches(sweep)])

    async def orphans(self, age: float, batch: int) -> int:
        """Delete one batch of bodies and pieces, `age` seconds old, that nothing refers to."""
        params = {"age": age, "batch": batch}
        bodies = await self._link.run(_SQL["orphans"], params)
        return len(bodies) + len(await self._link.run(_SQL["orphan_chunks"], params))

    async def expire_attempts(self, age: float) -> int:
        """Drop day partitions of attempts older than `age` seconds; return how many."""
        ((dropped,),) = await self._link.run(_SQL["expire_attempts"], {"age": age})
        return int(dropped)

    async def asked(self) -> Asked:
        """Find out what is to be done now, by one cheap statement."""
        ((delete, release, expire),) = await self._link.run(_SQL["asked"])
        return Asked(delete, release, expire)

    async def expire_rules(self) -> list[str]:
        """Remove standing rules whose time is over; return their names."""
        return [name for (name,) in await self._link.run(_SQL["expire_rules"])]
