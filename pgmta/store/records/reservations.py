"""Times of budgets that workers reserve for their transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pgmta.postgres.link import Link
from pgmta.store.queries import queries

_SQL = queries("reservations")
_ANY, _ROUTE = (_SQL["reserve"].fill(of=_SQL[name]) for name in ("any", "route"))


@dataclass(frozen=True, slots=True)
class Budget:
    """A row of the table of budgets, by its key.

    Without a `rate` the row says it, and no row is no limit. That of a route has one, and a
    `label`: the name by which claims leave out its mail.
    """

    key: str
    rate: float | None = None
    burst: float = 1.0
    label: str = ""


class Reservation(NamedTuple):
    """Reserved times by the database's clock, in seconds: the first, their number and distance.

    For the number 0, `first` is the time to ask again. The clock said `present` meanwhile.
    """

    first: float
    number: int
    step: float
    present: float


class BudgetReservations:
    """Reserves times of budgets, for strictness at the share `pace` of their rates."""

    def __init__(self, link: Link, pace: float) -> None:
        self._link = link
        self._pace = pace

    async def reserve(self, budget: Budget, wanted: int, ahead: float) -> Reservation | None:
        """Reserve at most `wanted` times, none later than in `ahead` seconds.

        Returns None if there is no such budget, so no limit. Raises StoreUnavailable,
        psycopg.Error.
        """
        fields = {"key": budget.key, "wanted": wanted, "ahead": ahead, "pace": self._pace}
        if budget.rate is not None:
            fields |= {"rate": budget.rate, "burst": budget.burst}
        statement = _ANY if budget.rate is None else _ROUTE
        rows = await self._link.run(statement, fields)
        return Reservation(*rows[0]) if rows else None


async def tidy(link: Link) -> int:
    """Delete budgets of routes that no mail uses. Raises StoreUnavailable, psycopg.Error."""
    ((number,),) = await link.run(_SQL["tidy"], {})
    return int(number)
