"""Lease due rows, fetch what is to be sent, prolong leases."""

from __future__ import annotations

from psycopg import pq

from queued.db import Link, connect
from queued.errors import ConfigError
from queued.model import Item, Message
from queued.store.queries import queries

_SQL = queries("claim")

SESSION = {
    # The plans must stay on the indexes whatever the statistics say of a queue that was empty a
    # moment ago: measured 584 ms a claim instead of 2 (docs/decisions/0005).
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
"""Run-time parameters for the connections that claim and settle."""


# What is right in both is one expression: the first leaves it no parenthesis of ours to close (as
# in `true) OR (true`), the second no keyword.
_FRAMES = (
    ("SELECT FROM queue WHERE CASE WHEN", "THEN true END"),
    ("SELECT FROM queue WHERE (", ")"),
)


class Claims:
    """Claims of one worker: `owner` names it, `where` chooses its rows."""

    def __init__(self, link: Link, owner: str, lease: float, where: str | None) -> None:
        self._link = link
        self._owner = owner
        self.lease = lease
        condition = f"\n{where}\n" if where else "true"
        self._claim = _SQL["claim"].replace("{where}", condition.replace("%", "%%"))

    async def claim(self, limit: int, busy: list[str]) -> list[Item]:
        """Lease up to `limit` due rows whose domain is not in `busy`. Raises StoreUnavailable."""
        rows = await self._link.run(
            self._claim, {"limit": limit, "busy": busy, "owner": self._owner, "lease": self.lease}
        )
        return [Item(*row) for row in rows]

    async def messages(self, ids: list[int], inline: int) -> dict[int, Message]:
        """Fetch messages, with their content where it has at most `inline` octets."""
        rows = await self._link.run(_SQL["messages"], {"ids": ids, "inline": inline})
        return {row[0]: Message(*row) for row in rows}

    async def renew(self, items: list[Item]) -> set[int]:
        """Prolong the leases and return the ids of the rows that are still ours."""
        rows = await self._link.run(
            _SQL["renew"],
            {"ids": [i.id for i in items], "tokens": [i.token for i in items], "lease": self.lease},
        )
        return {row[0] for row in rows}

    async def next_due(self) -> float | None:
        """Seconds until the next deferred row is due, None if none waits."""
        ((seconds,),) = await self._link.run(_SQL["next_due"])
        return None if seconds is None else float(seconds)


class Contents:
    """Reads the content of messages that did not come with their claim."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def body(self, message_id: int) -> bytes | None:
        """The whole content, None if the message is gone."""
        rows = await self._link.run(_SQL["body"], {"id": message_id})
        return bytes(rows[0][0]) if rows else None

    async def chunk(self, message_id: int, position: int) -> bytes | None:
        """One piece of the content, None if it is gone."""
        rows = await self._link.run(_SQL["chunk"], {"id": message_id, "position": position})
        return bytes(rows[0][0]) if rows else None


async def check_where(uri: str, where: str) -> None:
    """Let PostgreSQL parse the condition without running anything.

    Raises ConfigError with PostgreSQL's words if it is no boolean expression over the columns of
    queue, psycopg.OperationalError if the server can't be reached.
    """
    connection = await connect(uri, "check")
    try:
        for head, tail in _FRAMES:
            # Parse only: analysed as a whole, one statement at most, nothing executed
            result = connection.pgconn.prepare(b"", f"{head}\n{where}\n{tail}".encode())
            if result.status != pq.ExecStatus.COMMAND_OK:
                reason = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"refused"
                position = result.error_field(pq.DiagnosticField.STATEMENT_POSITION)
                at = f" at character {int(position) - len(head) - 1}" if position else ""
                raise ConfigError([f"environment.database.where: {reason.decode()}{at}"])
        if connection.pgconn.describe_prepared(b"").nparams:
            raise ConfigError(["environment.database.where: parameters ($1) mean nothing here"])
    finally:
        await connection.close()
