"""The clock of the database: a step back shortens waits (docs/decisions/0054-clock.md)."""

from __future__ import annotations

from typing import NamedTuple

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("clock")


class ClockLook(NamedTuple):
    """The database's time, the seconds of a step back, and the rows whose waits are shorter now."""

    seen: float
    back: float | None
    rows: int | None


class DatabaseClock:
    """Looks at the clock; a step of at most `least` seconds is none, and a lease has `lease`."""

    def __init__(self, link: Link, least: float, lease: float) -> None:
        self._link = link
        self._params = {"least": least, "lease": lease}

    async def look(self) -> ClockLook:
        """Note the time, and shorten waits if the clock was set back since another look.

        Of several processes one does so. Raises StoreUnavailable, psycopg.Error.
        """
        (row,) = await self._link.run(_SQL["look"], self._params)
        return ClockLook(*row)
