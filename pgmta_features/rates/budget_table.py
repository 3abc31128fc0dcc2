"""The table of budgets, as operators see and set it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("rates")


class BudgetTable:
    """The budgets. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db

    async def rows(self, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the budgets whose keys begin with one of these; without any, all."""
        return await self._db.rows(_SQL["list"], {"keys": list(keys)})

    async def set(
        self, key: str, rate: float, most: int | None, note: str | None, who: str, *, keep: bool
    ) -> bool:
        """Make or change a budget, and note it in the audit; return whether it changed.

        With `keep` its sum of a month stays.
        """
        params = {"key": key, "rate": rate, "most": most, "most_given": not keep, "note": note}
        async with self._db.transaction():
            row = await self._db.row(_SQL["set"], params)
            changed = bool(row and row["changed"])
            if changed:
                await self._db.audit(who, "budget set", key, {"rate": rate}, 1)
        return changed
