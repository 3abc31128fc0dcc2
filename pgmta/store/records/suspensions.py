"""The suspensions as queued sees them, and the rows that it puts off for them, in batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgmta.model import Item, Suspension
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.postgres.notify import NOTIFY
from pgmta.store.queries import bracketed, queries
from pgmta.store.queue.claim import SESSION

_SQL = queries("suspensions")

SUSPENDING = SESSION
"""Run-time parameters for the connection that puts rows off: its plans stay on the indexes."""


@dataclass(frozen=True, slots=True)
class SuspensionTask:
    """A suspension, or one `domain` of it, whose mail is to be put off.

    Without a `condition` only a worker knows which rows it is about.
    """

    suspension: int
    kind: str
    value: str
    domain: str | None
    condition: str | None


class SuspensionWork(NamedTuple):
    """Tasks of the duty.

    It says whether the time of a suspension is over, and whether mail is to be put off. `ended` are
    suspensions that have ended while rows wait for them.
    """

    over: bool
    waiting: bool
    ended: list[int]


class FreedRows(NamedTuple):
    """Rows of a batch that was given back, and the id of the last one."""

    number: int
    last: int


class SuspensionTable:
    """Reads suspensions and changes rows. Each method raises StoreUnavailable, psycopg.Error."""

    def __init__(self, link: Link) -> None:
        self._link = link

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
        """Return those of the rows that meet an SQL condition, each with a suspension."""
        return dict(await self._link.run(_SQL["under"], {"ids": Bigints(ids)}))

    async def learn(self, suspension: int, domain: str) -> None:
        """Note a domain whose mail leads to a suspended MX host."""
        await self._link.run(_SQL["learn"], {"suspension": suspension, "domain": domain})

    async def learn_logged(self, suspension: int) -> None:
        """Note the domains that lead to a suspended MX host by the log of the last day."""
        await self._link.run(_SQL["logged"], {"suspension": suspension})

    async def look(self) -> SuspensionWork:
        """Return the tasks."""
        ((over, waiting, ended),) = await self._link.run(_SQL["look"])
        return SuspensionWork(over, waiting, ended)

    async def expire(self, who: str) -> int:
        """End the suspensions whose time is over; return how many."""
        ((number,),) = await self._link.run(_SQL["expire"], {"who": who})
        return int(number or 0)

    async def tasks(self) -> list[SuspensionTask]:
        """Return the suspensions and domains whose mail is not put off yet."""
        return [SuspensionTask(*row) for row in await self._link.run(_SQL["tasks"])]

    async def set_applied(self, task: SuspensionTask) -> None:
        """Note that the mail of a task is put off."""
        params = {"suspension": task.suspension, "domain": task.domain}
        await self._link.run(_SQL["applied_domain" if task.domain else "applied"], params)

    async def due_ids(self, condition: str, after: int, page: int) -> list[int]:
        """Return the ids of the next rows that are due and match, from the row `after` on."""
        query = _SQL["due"].fill(where=bracketed(condition))
        return [row for (row,) in await self._link.run(query, {"after": after, "page": page})]

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
