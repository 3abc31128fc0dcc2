"""Budgets as an operator lists and sets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import queries

_SQL = queries("budgets")


class BudgetTable(OperatorLink):
    """Works over a separate connection. Changes are noted in table `audit`; `who` is the operator.

    Raises StoreUnavailable when it opens, and psycopg.Error.
    """

    def __init__(self, uri: str, who: str) -> None:
        super().__init__(uri)
        self._who = who

    def rows(self) -> list[dict[str, Any]]:
        """Return all budgets; `rate` is per second."""
        return self._db.execute(_SQL["list"]).fetchall()

    def find(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return some budgets by their keys."""
        found = self._db.execute(_SQL["find"], {"keys": list(keys)})
        return {row["key"]: row for row in found}

    def set(self, key: str, rate: float, month_most: int | None, note: str | None) -> bool:
        """Make a budget or change it; return whether that changed anything.

        `rate` is per second, `month_most` the number in a calendar month in UTC, None for any.
        """
        given = {"rate": rate, "month_most": month_most, "note": note}
        with self._db.transaction():
            row = self._db.execute(_SQL["set"], {"key": key, **given}).fetchone()
            changed = bool(row and row["changed"])
            self._audit(self._who, "budget set", key, given, int(changed))
        return changed
