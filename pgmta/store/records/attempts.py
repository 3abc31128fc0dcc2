"""Partitions of the attempts log."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

DAYS_AHEAD = 7

_SQL = queries("attempts")


async def ensure_partitions(link: Link) -> int:
    """Make the missing day partitions from today on; return how many were made."""
    ((made,),) = await link.run(_SQL["ensure"], {"days": DAYS_AHEAD})
    return int(made)
