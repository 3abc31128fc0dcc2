"""Suspensions as an operator orders, lists and ends them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import PgmtaError
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("suspensions")


class SuspensionOrders:
    """The functions of the database note each order in `audit`.

    Methods raise PgmtaError for what the database refuses, psycopg.Error.
    """

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db

    async def suspend(
        self, kind: str, value: str, reason: str, until: datetime | None, tag: str, who: str
    ) -> int:
        """Suspend the mail of a key; return the number of the suspension."""
        params = {"kind": kind, "value": value, "reason": reason, "until": until, "tag": tag}
        row = await self._order("suspend", {**params, "who": who})
        return int(row["id"])

    async def resume(self, number: int, who: str) -> bool:
        """End a suspension; return False if there is none of this number."""
        return bool((await self._order("resume", {"id": number, "who": who}))["done"])

    async def _order(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._db.row(_SQL[name], params) or {}
        except pg_errors.InsufficientPrivilege as error:
            raise PgmtaError(
                f"{error.diag.message_primary}: take a file whose login has pgmta_operator"
            ) from None
        except (psycopg.DataError, psycopg.ProgrammingError, psycopg.IntegrityError) as error:
            raise PgmtaError(str(error.diag.message_primary)) from None

    async def suspensions(self) -> list[dict[str, Any]]:
        """Return all in order, with the number of `rows` that wait for each."""
        return await self._db.rows(_SQL["list"])

    async def leaving(self) -> int:
        """Return how many rows still wait for a suspension that has ended."""
        row = await self._db.row(_SQL["leaving"])
        return int(row["rows"]) if row else 0

    async def marks(self, message_id: int) -> dict[int, int]:
        """Return the rows of a message that were put off, each with its suspension."""
        rows = await self._db.rows(_SQL["marks"], {"id": message_id})
        return {row["id"]: row["suspension"] for row in rows}
