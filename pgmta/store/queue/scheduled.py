"""Scheduled rows, which no claim looks at before their time is near."""

from __future__ import annotations

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("scheduled")


class ScheduledRows:
    """Brings scheduled rows among those that claims look at, by the clock of the database."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def queue_due(self, batch: int) -> int:
        """Move up to `batch` rows whose send_at is near, or over, in one commit; return how many.

        They are QUEUED then, and due at their send_at. A row that another transaction has locked is
        left. Raises StoreUnavailable, psycopg.Error.
        """
        ((rows,),) = await self._link.run(_SQL["due"], {"batch": batch})
        return int(rows)
