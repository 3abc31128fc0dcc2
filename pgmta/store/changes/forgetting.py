"""One person is forgotten, part by part."""

from __future__ import annotations

from typing import Any

from pgmta.postgres.operator import OperatorLink
from pgmta.store.queries import queries

_SQL = queries("forgetting")


class Forgetting(OperatorLink):
    """Works over a separate connection. Table `audit` names the address by its keyed hash.

    Raises StoreUnavailable when it opens, and psycopg.Error.
    """

    def parts(self) -> list[str]:
        """Return the parts of the database that a person may be in."""
        return [row["part"] for row in self._db.execute(_SQL["parts"])]

    def forget(self, address: str, part: str, *, dry_run: bool) -> dict[str, Any]:
        """Remove a person from a part, in one commit, or count; return numbers by noun.

        `stays` has the names of rows that operators wrote, and `waits` those of mail of others.
        Both stay.
        """
        params = {"address": address, "part": part, "dry_run": dry_run}
        row = self._db.execute(_SQL["forget"], params).fetchone()
        return dict(row["removed"]) if row else {}

    def note(self, who: str, address: str, removed: dict[str, int]) -> None:
        """Note in the audit that a person was forgotten; `who` is the operator."""
        row = self._db.execute(_SQL["hash"], {"address": address}).fetchone()
        name = str(row["hash"]) if row else ""
        self._audit(who, "forget", name, dict(removed), sum(removed.values()))
