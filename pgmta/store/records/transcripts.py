"""Partitions of the transcripts."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.records.attempts import DAYS_AHEAD

_SQL = queries("transcripts")


async def keep_partitions(link: Link, age: float) -> tuple[int, int]:
    """Make the missing day partitions from today on, and drop those older than `age` seconds.

    Returns the numbers of both.
    """
    ((made,),) = await link.run(_SQL["ensure"], {"days": DAYS_AHEAD})
    ((dropped,),) = await link.run(_SQL["expire"], {"age": age})
    return made, dropped
