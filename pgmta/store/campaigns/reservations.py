"""Times of budgets that workers reserve for their transactions."""

from __future__ import annotations

from typing import NamedTuple

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("reservations")


class Reservation(NamedTuple):
    """Reserved times: seconds until the first one, their number, and seconds between two.

    For the number 0, `delay` is the time after which one may be free.
    """

    delay: float
    number: int
    step: float


class BudgetReservations:
    """Reserves times of budgets: at a share `pace` of the rates, at most `ahead` seconds ahead."""

    def __init__(self, link: Link, pace: float, ahead: float) -> None:
        self._link = link
        self._fields = {"pace": pace, "ahead": ahead}

    async def reserve(self, key: str, wanted: int) -> Reservation | None:
        """Reserve at most `wanted` times; None if there is no such budget, so no limit.

        Raises StoreUnavailable, psycopg.Error.
        """
        rows = await self._link.run(_SQL["reserve"], {"key": key, "wanted": wanted, **self._fields})
        return Reservation(*rows[0]) if rows else None
