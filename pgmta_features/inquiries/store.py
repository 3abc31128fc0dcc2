"""Inquiries of operators: what they ask the running processes, and the answers."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import psycopg
from psycopg import errors as pg_errors

from pgmta.errors import PgmtaError
from pgmta.postgres.link import Link
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("inquiries")

INSPECT = "inspect"
"""The action that shows a destination."""
DISCONNECT = "disconnect"
"""The action that ends a connection."""


class Inquiry(NamedTuple):
    """An inquiry as a process gets it: the `action` on a `value`, which `who` asks for."""

    id: int
    action: str
    value: str
    who: str
    audit: int | None


class InquiryTable:
    """The inquiries that a process answers. Methods raise StoreUnavailable, psycopg.Error."""

    def __init__(self, link: Link, process: str) -> None:
        self._link = link
        self.process = process
        """The name of the process."""

    async def open(self) -> list[Inquiry]:
        """Return the inquiries that this process has to answer."""
        found = await self._link.run(_SQL["open"], {"process": self.process})
        return [Inquiry(*row) for row in found]

    async def answer(self, inquiry: Inquiry, answer: dict[str, Any]) -> None:
        """Answer one, and note in `audit` a connection that was `ended`."""
        params = {"id": inquiry.id, "process": self.process, "audit": inquiry.audit}
        await self._link.run(_SQL["answer"], {**params, "answer": json.dumps(answer)})

    async def expire(self) -> None:
        """Remove inquiries whose command did not end them."""
        await self._link.run(_SQL["expire"])


class InquiryOrders:
    """Asks the processes. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db

    async def begin(self, action: str, value: str, who: str, process: str | None = None) -> int:
        """Begin an inquiry, and return its number. Raises PgmtaError without the right."""
        params = {"action": action, "value": value, "who": who, "process": process}
        try:
            row = await self._db.row(_SQL["begin"], params)
        except pg_errors.InsufficientPrivilege as error:
            raise PgmtaError(
                f"{error.diag.message_primary}: take a file whose login has pgmta_operator"
            ) from None
        except psycopg.ProgrammingError as error:  # the schema may be older
            raise PgmtaError(str(error.diag.message_primary)) from None
        assert row  # noqa: S101 - for the type checker
        return int(row["id"])

    async def answers(self, inquiry: int) -> dict[str, Any]:
        """Return the answers so far, by process."""
        found = await self._db.rows(_SQL["answers"], {"id": inquiry})
        return {row["process"]: row["answer"] for row in found}

    async def answering(self) -> dict[str, dict[str, Any]]:
        """Return the processes that will answer, with their `workers` and seconds of `silence`."""
        return {row["process"]: row for row in await self._db.rows(_SQL["answering"])}

    async def end(self, inquiry: int) -> None:
        """End an inquiry: its answers are read."""
        await self._db.execute(_SQL["end"], {"id": inquiry})
