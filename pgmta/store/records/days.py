"""The days of the logs: partitions of `attempts`, `transcripts` and `reports`."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_DAYS_AHEAD = 7  # for which partitions are made

_SQL = queries("days")


async def keep_days(link: Link, table: str, age: float) -> tuple[int, int]:
    """Make the missing days of a log from today on, and drop those older than `age` seconds.

    Returns the numbers of both. Raises StoreUnavailable, psycopg.Error.
    """
    ((made,),) = await link.run(_SQL["make"], {"table": table, "days": _DAYS_AHEAD})
    ((dropped,),) = await link.run(_SQL["expire"], {"table": table, "age": age})
    return made, dropped
