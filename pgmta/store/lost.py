"""Rows whose lease ran out, one by one: PostgreSQL may refuse the log entry of one of them."""

from __future__ import annotations

import psycopg

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.store.guard import about_a_row
from pgmta.store.queries import queries

_SQL = queries("lost")
_BATCH = 1000
_REASON = 500  # characters

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
                words = faults.words(error)
                reason = f"lease ran out, but the database refuses to log that: {words}"[:_REASON]
                await link.run(_SQL["hold"], {**params, "reason": reason, "who": who})
                log.error("a lost attempt can't be logged: the row is on hold", row=after,
                          message=message_id, reason=words)  # fmt: skip
                found = True
        rows = await _next(link, after)
    return found


async def _next(link: Link, after: int) -> list[tuple[int, int, int]]:
    params = {"after": after, "batch": _BATCH}
    return [(row[0], row[1], row[2]) for row in await link.run(_SQL["ran_out"], params)]
