"""Messages and rows, put straight into the tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from pgmta.model import Item
from pgmta.store.changes.change import DEFAULT_BATCH_ROWS, OperatorChanges
from pgmta.store.changes.row_change import RowChange


def message(db: psycopg.Connection, message_id: int, chunks: int = 0) -> int:
    """A stored message, with this number of chunks of content."""
    db.execute(
        "INSERT INTO messages (id, size, trace, body, chunks) VALUES (%s, 4, 'T: t\r\n', %s, %s)",
        (message_id, b"" if chunks else b"body", chunks),
    )
    for position in range(chunks):
        db.execute(
            "INSERT INTO message_chunks (message_id, position, data) VALUES (%s, %s, 'x')",
            (message_id, position),
        )
    return message_id


def row(db: psycopg.Connection, message_id: int, **columns: Any) -> int:
    """A row of the queue; `due` is in seconds from now, `lease` too."""
    values: dict[str, Any] = {
        "message_id": message_id,
        "sender": "s@a.example",
        "recipient": "r@b.example",
        "domain": "b.example",
        **columns,
    }
    for name, column in (("due", "next_attempt"), ("lease", "lease_until")):
        if name in values:
            seconds = values.pop(name)
            (values[column],) = fetch(db, "SELECT now() + make_interval(secs => %s)", seconds)
    if values.get("status") == "SENDING" or "lease_token" in values:
        (values["lease_since"],) = fetch(db, "SELECT now()")
        values = {"lease_owner": "old", "lease_token": 0, **values}
    if "metadata" in values:
        values["metadata"] = Jsonb(values["metadata"])
    (made,) = _insert(db, "queue", values, " RETURNING id").fetchone() or (0,)
    return int(made)


def attempt(
    db: psycopg.Connection, row_id: int = 1, message_id: int = 1, /, **columns: Any
) -> None:
    """An entry in the log of attempts: a deferral, if the columns say nothing else."""
    usual = {
        "started_at": datetime.now(UTC), "row_id": row_id, "message_id": message_id,
        "lease_token": 1, "attempt": 1, "code": 450, "event": "deferred",
        "sender": "s@a.example", "recipient": "r@b.example", "domain": "b.example", "worker": "w",
        "host": "mx.b.example:25", "command": "RCPT", "enhanced": "", "reply": "later",
    }  # fmt: skip
    _insert(db, "attempts", usual | columns)


def refuse_entries(db: psycopg.Connection) -> None:
    """Have a trigger refuse the log entries of recipients that begin with x."""
    db.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'no entry for %', NEW.recipient; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON attempts FOR EACH ROW
        WHEN (NEW.recipient LIKE 'x%') EXECUTE FUNCTION refuse()""")


def _insert(
    db: psycopg.Connection, table: str, values: dict[str, Any], more: str = ""
) -> psycopg.Cursor[Any]:
    statement = sql.SQL(f"INSERT INTO {table} ({{}}) VALUES ({{}}){more}").format(
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(map(sql.Placeholder, values)),
    )
    return db.execute(statement, values)


def fetch(db: psycopg.Connection, query: str, *params: Any) -> tuple[Any, ...]:
    """The one row that the query returns."""
    found = db.execute(query.encode(), params or None).fetchone()
    assert found is not None
    return found


def column(db: psycopg.Connection, query: str, *params: Any) -> list[Any]:
    """The first column of all rows."""
    return [found[0] for found in db.execute(query.encode(), params or None).fetchall()]


def mail(domain: str, sender: str = "", recipient: str | None = None, **fields: Any) -> Item:
    """A row that no database has."""
    to = f"r@{domain}" if recipient is None else recipient
    return Item(1, 1, sender, to, domain, 1, datetime.now(UTC), 1, **fields)


def item(db: psycopg.Connection, row_id: int) -> Item:
    """The row as a claim would have returned it."""
    return Item(
        *fetch(
            db,
            "SELECT id, message_id, sender, recipient, domain, attempts, ts, lease_token "
            "FROM queue WHERE id = %s",
            row_id,
        )
    )


async def operate(uri: str, change: RowChange, size: int = DEFAULT_BATCH_ROWS) -> int:
    """Run a change as queuectl does; return the number of rows."""
    changes = OperatorChanges(uri)
    try:
        return sum([rows async for rows in changes.batches(change, size)])
    finally:
        await changes.close()
