"""Rows whose lease ran out, apart from claims: those that no claim can log, or none may take."""

from __future__ import annotations

from typing import Any

import psycopg

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.failing_conditions import about_a_row

_SQL = queries("expired_leases")
_ROWS_PER_BATCH = 1000
_MAX_REASON_CHARACTERS = 500

log = get("worker")


async def take_lost(link: Link, who: str) -> bool:
    """Log for each such row that its outcome is unknown; hold the rows whose entry is refused.

    A claim does that for many rows at once. A single refusal, for example by an operator's trigger,
    would stop every claim. Returns whether there was one. Raises StoreUnavailable, and
    psycopg.Error if the reason is not one row.
    """
    found = False
    after, rows = 0, await _next(link, 0)
    while rows:
        for after, message_id, token in rows:
            params = {"id": after, "token": token}
            try:
                await link.run(_SQL["unknown"], params)
            except psycopg.Error as error:
                if not about_a_row(error):
                    raise
                message = faults.one_line(error)
                reason = f"lease ran out, but the database refuses to log that: {message}"[
                    :_MAX_REASON_CHARACTERS
                ]
                await link.run(_SQL["hold"], {**params, "reason": reason, "who": who})
                log.error("a lost attempt can't be logged: the row is on hold", row=after,
                          message=message_id, reason=message)  # fmt: skip
                found = True
        rows = await _next(link, after)
    return found


class FinalLeases:
    """Leases of rows with `once` that ran out: no attempt follows one that had begun.

    `who` stands at the holds.
    """

    def __init__(self, link: Link, who: str) -> None:
        self._link = link
        self._who = who

    async def next(self, after: int, page: int) -> tuple[int, int, list[int]]:
        """Look at the next `page` rows with `once` by id, after a row.

        Returns the last id, the number of rows, and the ids of those whose lease ran out. Raises
        StoreUnavailable.
        """
        params = {"after": after, "page": page}
        ((last, number, ids),) = await self._link.run(_SQL["final"], params)
        return last or after, number, ids

    async def settle(self, ids: list[int]) -> tuple[int, int]:
        """Log these rows as unknown, and hold or remove them; free those that had not begun.

        Returns how many rows are settled, and how many are free again. A row that another
        transaction has locked is left. A row whose log entry PostgreSQL refuses goes on hold, with
        the reason. Raises StoreUnavailable, and psycopg.Error if the reason is not one row.
        """
        try:
            found = [row[1] for row in await self._run("settle_final", ids=Bigints(ids))]
            return sum(found), len(found) - sum(found)
        except psycopg.Error as error:
            if not about_a_row(error):
                raise
            if len(ids) > 1:
                each = [await self.settle([one]) for one in ids]
                return sum(settled for settled, _ in each), sum(freed for _, freed in each)
            message = faults.one_line(error)
        reason = f"outcome unknown, but the database refuses to log that: {message}"[
            :_MAX_REASON_CHARACTERS
        ]
        held = await self._run("hold_final", id=ids[0], reason=reason)
        for (message_id,) in held:
            log.error("a lost attempt can't be logged: the row is on hold", row=ids[0],
                      message=message_id, reason=message)  # fmt: skip
        return len(held), 0

    async def _run(self, name: str, **params: Any) -> list[tuple[Any, ...]]:
        return await self._link.run(_SQL[name], {"who": self._who, **params})


async def _next(link: Link, after: int) -> list[tuple[int, int, int]]:
    params = {"after": after, "batch": _ROWS_PER_BATCH}
    return [(row[0], row[1], row[2]) for row in await link.run(_SQL["ran_out"], params)]
