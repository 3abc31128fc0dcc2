"""One person is forgotten, part by part."""

from __future__ import annotations

from typing import Any

from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import queries

_SQL = queries("forgetting")


class Forgetting:
    """Table `audit` names the address by its keyed hash. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db

    async def parts(self) -> list[str]:
        """Return the parts of the database that a person may be in."""
        return [row["part"] for row in await self._db.rows(_SQL["parts"])]

    async def forget(self, address: str, part: str, *, dry_run: bool) -> dict[str, Any]:
        """Remove a person from a part, in one commit, or count; return numbers by noun.

        `stays` has the names of rows that operators wrote, and `waits` those of mail of others.
        Both stay.
        """
        params = {"address": address, "part": part, "dry_run": dry_run}
        row = await self._db.row(_SQL["forget"], params)
        return dict(row["removed"]) if row else {}

    async def note(self, who: str, address: str, removed: dict[str, int]) -> None:
        """Note in the audit that a person was forgotten; `who` is the operator."""
        row = await self._db.row(_SQL["hash"], {"address": address})
        name = str(row["hash"]) if row else ""
        await self._db.audit(who, "forget", name, dict(removed), sum(removed.values()))
