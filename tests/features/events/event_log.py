"""Events as a reader gets them, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from tests.support.rows import column, fetch

CONTENT = b"From: s@a.example\r\nSubject: x\r\n\r\nx\r\n"


class Event(NamedTuple):
    """A row of events_read()."""

    cursor: str
    id: str | None
    kind: str | None
    at: Any
    message_id: int | None
    row_id: int | None
    document: dict[str, Any] | None


def subscribe(db: psycopg.Connection, name: str = "test", kind: str = "reader") -> None:
    db.execute("SELECT events_subscribe(%s, %s)", (name, kind))


def number(db: psycopg.Connection) -> int:
    """Number what there is, as the sequencer does; return the commits."""
    return sum(iter(lambda: fetch(db, "SELECT commits FROM events_number()")[0] or 0, 0))


def page(
    db: psycopg.Connection, after: str | None = None, most: int = 1000, **named: Any
) -> list[Event]:
    """Return one answer; the last row may only have the place that was reached."""
    words = "".join(f", {name} => %({name})s" for name in named)
    query = f"SELECT * FROM events_read(%(after)s, %(most)s{words})"
    found = db.execute(query.encode(), {"after": after, "most": most, **named}).fetchall()
    return [Event(*row) for row in found]


def events(
    db: psycopg.Connection, after: str | None = None, most: int = 1000, **named: Any
) -> list[Event]:
    """Return all events behind a cursor, read page by page."""
    found = []
    while rows := page(db, after, most, **named):
        found += [row for row in rows if row.id is not None]
        after = rows[-1].cursor
    return found


def kinds(db: psycopg.Connection, after: str | None = None) -> list[str | None]:
    """Number what there is, and return the kinds of all events behind a cursor."""
    number(db)
    return [event.kind for event in events(db, after)]


def send(db: psycopg.Connection, *recipients: str, metadata: str = "{}", tenant: str = "") -> int:
    """Submit a message; return its id."""
    query = (
        "SELECT submit('s@a.example', %s, %s, metadata => %s, tenant => %s, on_failed => 'remove')"
    )
    params = (list(recipients or ("r@b.example",)), CONTENT, metadata, tenant)
    (message,) = fetch(db, query, *params)
    return int(message)


def rows_of(db: psycopg.Connection, message: int) -> list[int]:
    return column(db, "SELECT id FROM queue WHERE message_id = %s ORDER BY id", message)
