"""Events and subscriptions, for operators: the statements of `queuectl events`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from psycopg import sql

from pgmta.postgres.blockers import described, remedy
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import feature_queries

_SQL = feature_queries("events")
_PAGE_EVENTS = 500


class EventTable:
    """Reads events, and changes subscriptions. The methods raise Blocked and psycopg.Error.

    Open transactions that have changed mail hold up `subscribe`, `unsubscribe`, `into` and `call`:
    see `repeat_subscribing`. `who` is noted with a new subscription; None: the login.
    """

    def __init__(self, db: OperatorConnection, who: str | None = None) -> None:
        self._db = db
        self._who = who

    async def page(self, after: str | None, kinds: Sequence[str]) -> list[dict[str, Any]]:
        """Return the next events behind a cursor; none: there are no more now.

        The last row may have no id: its cursor is the place to go on from. Raises psycopg.Error
        with the SQLSTATE PG409 if events behind the cursor are lost or have expired.
        """
        fields = {"after": after, "most": _PAGE_EVENTS, "kinds": list(kinds) or None}
        return await self._db.rows(_SQL["read"], {**fields, "viewer": None, "tenant": None})

    async def of_message(self, message: int) -> list[dict[str, Any]]:
        """Return the events of a message."""
        return await self._db.rows(_SQL["of_message"], {"message": message})

    async def end(self) -> str:
        """Return the cursor behind all events."""
        return str(await self._value("end", {}, "cursor"))

    async def since(self, moment: datetime) -> str:
        """Return a cursor before the events since a time."""
        return str(await self._value("since", {"time": moment}, "cursor"))

    async def subscribe(self, name: str, kind: str) -> bool:
        """Subscribe, and return whether the subscription is new."""
        fields = {"name": name, "kind": kind, "who": self._who}
        return bool(await self._value("subscribe", fields, "new"))

    async def unsubscribe(self, name: str) -> bool:
        """End a subscription, and return whether there was one."""
        return bool(await self._value("unsubscribe", {"name": name}, "ended"))

    async def table_statements(self, table: str) -> tuple[str, str]:
        """Return who makes a table for events, and by which statements."""
        (row,) = await self._db.rows(_SQL["table_statements"], {"table": table})
        return row["role"], row["statements"]

    async def make_table(self, role: str, statements: str) -> None:
        """Run these statements as that role."""
        async with self._db.transaction():
            await self._db.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            await self._db.execute(statements.encode())

    async def into(self, table: str, viewer: str | None, tenant: str | None) -> str:
        """Have events inserted into a table; return the name of the subscription."""
        fields = {"table": table, "viewer": viewer, "tenant": tenant, "who": self._who}
        return str(await self._value("into", fields, "name"))

    async def call(
        self, function: str, login: str | None, viewer: str | None, tenant: str | None
    ) -> str:
        """Have a function called with events; return the name of the subscription."""
        fields = {"function": function, "login": login, "viewer": viewer, "tenant": tenant}
        return str(await self._value("call", {**fields, "who": self._who}, "name"))

    async def _value(self, statement: str, fields: dict[str, Any], column: str) -> Any:
        (row,) = await self._db.rows(_SQL[statement], fields)
        return row[column]

    async def blocker(self) -> str:
        """Return the oldest open transaction that has changed mail, and what ends it; or ''."""
        for row in await self._db.rows(_SQL["changing"]):
            return f"{described(row)}: {remedy(row)}"
        return ""

    async def subscriptions(self) -> list[dict[str, Any]]:
        """Return the subscriptions."""
        return await self._db.rows(_SQL["subscriptions"])
