"""The table of budgets, as operators see and set it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import feature_queries

_SQL = feature_queries("rates")


class BudgetTable(OperatorLink):
    """Works over a separate connection. Raises StoreUnavailable when it opens, psycopg.Error."""

    def rows(self, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the budgets whose keys begin with one of these; without any, all."""
        return self._db.execute(_SQL["list"], {"keys": list(keys)}).fetchall()

    def set(
        self, key: str, rate: float, most: int | None, note: str | None, who: str, *, keep: bool
    ) -> bool:
        """Make or change a budget, and note it in the audit; return whether it changed.

        With `keep` its sum of a month stays.
        """
        params = {"key": key, "rate": rate, "most": most, "most_given": not keep, "note": note}
        with self._db.transaction():
            row = self._db.execute(_SQL["set"], params).fetchone()
            changed = bool(row and row["changed"])
            if changed:
                self._audit(who, "budget set", key, {"rate": rate}, 1)
        return changed
