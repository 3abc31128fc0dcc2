"""Mail by SQL and by SMTP comes in by one function, and is stored alike."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmta.mail.header import tls_optional
from pgmta.model import NewMessage, Options
from pgmta.postgres.link import Link
from pgmta.store.queue.enqueue import Enqueue

CONTENT = b"Date: x\r\nMessage-ID: <1@a.example>\r\nSubject: x\r\n\r\nx\r\n"


ADDED = re.compile(
    r"Date: ..., .{2} ... .{4} .{2}:.{2}:.{2} \+0000\r\n"
    r"|(?:Message-ID: )?<[0-9a-f-]{36}@localhost>(?:\r\n)?"
)
OTHER = {"id", "message_id", "ts", "next_attempt", "received_at", "trace", "submitted_by", "origin"}


def stored(db: psycopg.Connection) -> list[dict[str, Any]]:
    """Everything in both tables, without times, numbers, added fields and who it came from."""
    body = "jsonb_build_object('body', convert_from(body, 'LATIN1'))"
    rows = (
        db.execute(f"SELECT to_jsonb(m) || {body} FROM messages AS m ORDER BY id").fetchall()
        + db.execute("SELECT to_jsonb(q) FROM queue AS q ORDER BY id").fetchall()
    )
    return [
        {
            name: ADDED.sub("added ", value) if isinstance(value, str) else value
            for name, value in row.items()
            if name not in OTHER
        }
        for (row,) in rows
    ]


@pytest.mark.parametrize(
    ("recipients", "options", "on_failed", "priority", "metadata"),
    [
        (["b@b.example"], None, "hold", 5, {}),
        (["b@b.example", "é@C.example"], None, "bounce", 0, {"_partid": "2", "order": 7}),
        (["b@b.example"], Options(tenant="t", once=True), "remove", 9, {"a": None}),
    ],
)
async def test_both_ways_store_the_same(
    database: str,
    db: psycopg.Connection,
    recipients: list[str],
    options: Options | None,
    on_failed: str,
    priority: int,
    metadata: dict[str, Any],
) -> None:
    given = options or Options()
    db.execute(
        "SELECT submit('s@A.example', %s, %b, priority => %s, metadata => %s, tenant => %s,"
        " on_failed => %s, once => %s)",
        (recipients, CONTENT, priority, json.dumps(metadata), given.tenant, on_failed,
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
        on_failed=on_failed,
    )
    await Enqueue(link).commit([message])
    assert stored(db) == by_sql
    db.execute("DELETE FROM queue")
    await Enqueue(link).commit([replace(message, options=given)])
    await link.close()
    assert stored(db) == by_sql
    assert len(by_sql) == 1 + len(recipients)


def test_tls_required_is_found(db: psycopg.Connection) -> None:
    """RFC 8689, section 3: the only field of the name, with the value No."""
    for field, wanted in {
        b"TLS-Required: No": True,
        b"tls-required\t:\r\n\tnO ": True,
        b"TLS-Required:No": True,
        b"TLS-Required:\r\n \r\n No \r\n\t": True,
        b"TLS-Required: \x0bNo": False,
        b"TLS-Required: No\r\n \x0c": False,
        b"Tls-Required: No\r\nTLS-Required: No": False,
        b"TLS-Required: No\r\n way": False,
        b"TLS-Required: Yes": False,
        b"X-TLS-Required: No": False,
        b"X: y\r\n\r\nTLS-Required: No": False,
    }.items():
        for before, after in ((b"X: y\r\n", b""), (b"", b"\r\nX: y")):
            content = before + field + after + b"\r\n\r\nx\r\n"
            db.execute("SELECT submit('a@a.example', '{b@b.example}', %b)", (content,))
            found = db.execute("SELECT tls_optional FROM messages").fetchall()
            db.execute("DELETE FROM queue")
            assert found == [(wanted,)], content


BLANKS = [b" ", b"\t", b"\r\n ", b"\r\n\t", b"\x0b", b"\x0c"]
blanks = st.lists(st.sampled_from(BLANKS), max_size=3).map(b"".join)
words = st.sampled_from([b"No", b"nO", b"no", b"n\r\n o", b"No\xff", b"No\\", b"Yes", b""])
values = st.tuples(blanks, words, blanks).map(b"".join)
names = st.sampled_from([b"TLS-Required:", b"tls-required :", b"X-TLS-Required:", b"X:"])
headers = st.lists(st.tuples(names, values).map(b"".join), min_size=1, max_size=3)


@given(headers)
def test_sql_and_python_find_tls_required_alike(
    template_db: psycopg.Connection, fields: list[bytes]
) -> None:
    header = b"\r\n".join(fields)
    query = "SELECT submit_tls_optional(encode(%b, 'escape'))"
    assert template_db.execute(query, (header,)).fetchone() == (tls_optional(header),)
