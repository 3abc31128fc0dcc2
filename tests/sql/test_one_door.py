"""`submit`, `queue_put` and the statement for usual groups store the same: they stay in step."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgmta.model import NewMessage, Options
from pgmta.postgres.link import Link
from pgmta.store.enqueue import Enqueue

CONTENT = b"Message-ID: <1@a.example>\r\nSubject: x\r\n\r\nx\r\n"
OTHER = {"id", "message_id", "ts", "next_attempt", "received_at", "trace", "submitted_by"}


def stored(db: psycopg.Connection) -> list[dict[str, Any]]:
    """Everything in both tables, without times, numbers and who it came from."""
    rows = (
        db.execute("SELECT to_jsonb(m) FROM messages AS m ORDER BY id").fetchall()
        + db.execute("SELECT to_jsonb(q) FROM queue AS q ORDER BY id").fetchall()
    )
    return [{name: value for name, value in row.items() if name not in OTHER} for (row,) in rows]


@pytest.mark.parametrize(
    ("recipients", "options", "priority", "metadata"),
    [
        (["b@b.example"], None, 5, {}),
        (["b@b.example", "é@C.example"], None, 0, {"_partid": "2", "order": 7}),
        (["b@b.example"], Options(tenant="t", on_failed="remove", once=True), 9, {"a": None}),
    ],
)
async def test_both_ways_store_the_same(
    database: str,
    db: psycopg.Connection,
    recipients: list[str],
    options: Options | None,
    priority: int,
    metadata: dict[str, Any],
) -> None:
    given = options or Options()
    db.execute(
        "SELECT submit('s@A.example', %s, %b, priority => %s, metadata => %s, tenant => %s,"
        " on_failed => %s, once => %s)",
        (recipients, CONTENT, priority, json.dumps(metadata), given.tenant, given.on_failed,
         given.once),
    )  # fmt: skip
    by_sql = stored(db)
    db.execute("DELETE FROM queue")
    link = Link(database, "test")
    message = NewMessage(
        id=77,
        sender="s@A.example",
        recipients=[(each, each.partition("@")[2].lower()) for each in recipients],
        size=len(CONTENT),
        trace="",
        body=CONTENT,
        utf8=not "".join(recipients).isascii(),
        metadata=[json.dumps(metadata)] * len(recipients),
        priority=priority,
        sender_domain="a.example",
        message_id_header="<1@a.example>",
        options=options,
    )
    await Enqueue(link).commit([message])  # without options by the statement
    assert stored(db) == by_sql
    db.execute("DELETE FROM queue")
    await Enqueue(link).commit([replace(message, options=given)])  # by queue_put
    await link.close()
    assert stored(db) == by_sql
    assert len(by_sql) == 1 + len(recipients)
