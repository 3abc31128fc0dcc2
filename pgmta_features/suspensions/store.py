"""The suspensions as queued sees them, and the rows that it puts off for them, in batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.postgres.notify import NOTIFY
from pgmta.store.admin.upkeep import Look
from pgmta.store.queries import bracketed, feature_queries
from pgmta.store.queue.claim import SESSION
from pgmta.store.queue.costly import SCANNING_SETTINGS, CostlyConditions, timed_out

_SQL = feature_queries("suspensions")

ANY_SUSPENSION = Look(_SQL["any_suspension"])

SUSPENDING_SETTINGS = SESSION | SCANNING_SETTINGS
"""Run-time parameters of the connection that puts rows off: its plans stay on the indexes."""

LOG_SETTINGS = {"statement_timeout": "60s"}
"""Run-time parameters of the connection that reads the log of a day."""

log = get("suspensions")

SUSPENDED = "suspended"
"""The kind of the reason that mail has to wait."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """Mail that is not tried for now, as the table `suspensions` has it.

    `domains` are recipient domains whose mail is known to lead to a suspended MX host.
    """

    id: int
    kind: str
    value: str
    reason: str = ""
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuspensionTask:
    """A suspension, or `domains` that lead to its MX host, whose mail is to be put off.

    Without a `condition` and `domains` only a worker knows which rows it is about.
    """

    suspension: int
    kind: str
    value: str
    domains: list[str] | None
    condition: str | None


class SuspensionWork(NamedTuple):
    """Tasks of the duty.

    It says whether the time of a suspension is over, and whether mail is to be put off. `ended` are
    suspensions that have ended while rows wait for them.
    """

    over: bool
    waiting: bool
    ended: list[int]


class RowPlace(NamedTuple):
    """A row by its id, among the rows of one `domain` or of all."""

    domain: str
    id: int


class FreedRows(NamedTuple):
    """Rows of a batch that was given back, and the id of the last one."""

    number: int
    last: int


class SuspensionTable:
    """Reads suspensions and changes rows. Each method raises StoreUnavailable, psycopg.Error."""

    def __init__(self, link: Link, costly: CostlyConditions | None = None) -> None:
        self._link = link
        self._costly = costly

    async def version(self) -> int:
        """Return the number of changes so far."""
        ((version,),) = await self._link.run(_SQL["version"])
        return int(version)

    async def active(self) -> list[Suspension]:
        """Return the suspensions that count."""
        found = await self._link.run(_SQL["active"])
        return [
            Suspension(number, kind, value, reason, tuple(domains))
            for number, kind, value, reason, domains in found
        ]

    async def under(self, ids: Sequence[int]) -> dict[int, int]:
        """Return those of the rows that meet an SQL condition, each with a suspension.

        If they take too long together, `costly` sets the costliest aside, and tries the others.
        """
        link = self._costly.link if self._costly else self._link
        try:
            return dict(await link.run(_SQL["under"], {"ids": Bigints(ids)}))
        except StoreUnavailable as error:
            if not (self._costly and timed_out(error)):
                raise
        found: dict[int, int] = {}
        async with self._costly.trial:
            conditions = dict(await self._link.run(_SQL["conditions"]))
            for number in await self._set_costly_aside(self._costly, conditions, ids):
                del conditions[number]
        for number, condition in conditions.items():
            rows = await self._costly.rows(condition, ids)
            if rows is None:
                await self._note_costly(self._costly, number)
            for row in rows or ():
                found.setdefault(row, number)
        return found

    async def learn(self, pairs: Collection[tuple[int, str]]) -> None:
        """Note domains whose mail leads to MX hosts, each with the suspension of the host."""
        numbers, domains = zip(*pairs, strict=True)
        params = {"suspensions": Bigints(numbers), "domains": list(domains)}
        await self._link.run(_SQL["learn"], params)

    async def logged(self, suspension: int) -> list[str]:
        """Return the domains that went to a suspended MX host by the log of the last day."""
        rows = await self._link.run(_SQL["logged"], {"suspension": suspension})
        return [domain for (domain,) in rows]

    async def look(self) -> SuspensionWork:
        """Return the tasks."""
        ((over, waiting, ended),) = await self._link.run(_SQL["look"])
        return SuspensionWork(over, waiting, ended)

    async def expire(self, who: str) -> int:
        """End the suspensions whose time is over; return how many."""
        ((number,),) = await self._link.run(_SQL["expire"], {"who": who})
        return int(number or 0)

    async def task(self) -> SuspensionTask | None:
        """Return the next suspension or domains whose mail is not put off yet."""
        found = await self._link.run(_SQL["task"])
        return SuspensionTask(*found[0]) if found else None

    async def counts(self, suspension: int) -> bool:
        """Return whether a suspension has not ended."""
        ((counts,),) = await self._link.run(_SQL["counts"], {"suspension": suspension})
        return bool(counts)

    async def set_applied(self, task: SuspensionTask) -> None:
        """Note that the mail of a task is put off."""
        params = {"suspension": task.suspension, "domains": task.domains}
        await self._link.run(_SQL["applied_domains" if task.domains else "applied"], params)

    async def set_aside(self, task: SuspensionTask) -> bool:
        """Set a task's suspension aside if its condition takes too long; return whether it does."""
        if not (self._costly and task.condition):
            return False
        conditions = {task.suspension: task.condition}
        return bool(await self._set_costly_aside(self._costly, conditions))

    async def _set_costly_aside(
        self,
        costly: CostlyConditions,
        conditions: Mapping[int, str],
        ids: Sequence[int] | None = None,
    ) -> list[int]:
        """Set those aside that take too long on these rows, or on those that are due.

        Returns their numbers.
        """
        found = []
        async for number in costly.beyond(conditions, ids):
            found.append(number)
            await self._note_costly(costly, number)
        return found

    async def _note_costly(self, costly: CostlyConditions, number: int) -> None:
        if await costly.link.run(_SQL["costly"], {"suspension": number}):
            log.error("a suspension is set aside: its condition takes too long", suspension=number,
                      hint="queuectl suspend --list")  # fmt: skip

    async def due(self, task: SuspensionTask, after: RowPlace, page: int) -> list[RowPlace]:
        """Return the next rows of a task that are due, from a place on."""
        params = {"domain": after.domain, "after": after.id, "page": page}
        if task.domains:
            params["suspension"] = task.suspension
            return [RowPlace(*row) for row in await self._link.run(_SQL["due_of_domains"], params)]
        query = _SQL["due"].fill(where=bracketed(task.condition or "true"))
        return [RowPlace("", row) for (row,) in await self._link.run(query, params)]

    async def items(self, ids: Sequence[int]) -> list[Item]:
        """Return rows as routes see them, without a lease."""
        found = []
        for row in await self._link.run(_SQL["rows"], {"ids": Bigints(ids)}):
            number, message, sender, recipient, domain, attempts, since = row[:7]
            item = Item(number, message, sender, recipient, domain, attempts, since, 0)
            item.on_failed, item.tenant, item.priority, item.metadata = row[7:]
            found.append(item)
        return found

    async def put_off(
        self, suspension: int, delays: Mapping[int, float], overdue: Mapping[int, float]
    ) -> int:
        """Put rows off by their ids, each for its seconds; return how many.

        `overdue` has the last time of `bounces.delay` that a row has passed.
        """
        params = {
            "ids": Bigints(delays),
            "suspension": suspension,
            "delays": json.dumps(delays),
            "overdue": json.dumps(overdue),
        }
        ((number,),) = await self._link.run(_SQL["put_off"], params)
        return int(number)

    async def free(self, suspension: int, after: int, batch: int) -> FreedRows:
        """Give up to `batch` rows back that wait for an ended suspension, after the row `after`."""
        params = {"suspension": suspension, "after": after, "batch": batch}
        (row,) = await self._link.run(_SQL["free"], params)
        return FreedRows(*row)

    async def wake(self) -> None:
        """Wake the workers."""
        await self._link.run(NOTIFY)
