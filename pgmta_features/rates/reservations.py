"""Times of budgets that workers reserve for their transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pgmta.postgres.link import Link
from pgmta.store.queries import feature_queries

_SQL = feature_queries("rates")
_RESERVE_OF_ANY, _RESERVE_OF_ROUTE = (
    _SQL["reserve"].fill(of=_SQL[name]) for name in ("any", "route")
)
_RESERVE_COMMON = _SQL["reserve_common"]


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

    Mail may begin `late` seconds after its time. From `next` on there are further times. The clock
    said `present` meanwhile.
    """

    first: float
    number: int
    step: float
    late: float
    next: float
    present: float


class Wish(NamedTuple):
    """Wanted times: at most `number`, from `soonest` to `ahead` seconds from now.

    Of several budgets all times but the first are at most `near` seconds from now. Mail may begin
    `late` seconds after its time. Of earlier times `used` were used, and `lost` were not: `why`
    is what was late then, "database", "host" or "next hop".
    """

    number: int
    soonest: float
    near: float
    ahead: float
    late: float
    used: int = 0
    lost: int = 0
    why: str | None = None


class BudgetReservations:
    """Reserves times of budgets."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def reserve(self, budgets: Sequence[Budget], wish: Wish) -> Reservation | None:
        """Reserve times that these have in common; with the number 0 none, which shows the clock.

        Returns None if there is no such budget, so no limit. Raises StoreUnavailable,
        psycopg.Error.
        """
        fields: dict[str, Any] = {
            "wanted": wish.number, "soonest": wish.soonest, "ahead": wish.ahead,
            "late": wish.late, "used": wish.used, "lost": wish.lost, "why": wish.why,
        }  # fmt: skip
        if len(budgets) > 1:
            statement = _RESERVE_COMMON
            fields |= {
                "near": wish.near,
                "keys": [budget.key for budget in budgets],
                "rates": [budget.rate for budget in budgets],
                "bursts": [float(budget.burst) for budget in budgets],
            }
        else:
            (budget,) = budgets
            fields["key"] = budget.key
            statement = _RESERVE_OF_ANY
            if budget.rate is not None:
                statement = _RESERVE_OF_ROUTE
                fields |= {"rate": budget.rate, "burst": budget.burst}
        rows = await self._link.run(statement, fields)
        return Reservation(*rows[0]) if rows else None


async def tidy(link: Link) -> int:
    """Delete budgets of routes that no mail uses. Raises StoreUnavailable, psycopg.Error."""
    ((number,),) = await link.run(_SQL["tidy"], {})
    return int(number)
