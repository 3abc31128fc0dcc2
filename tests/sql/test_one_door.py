"""`submit`, `queue_put` and the statement for usual groups store the same: they stay in step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmta.model import NewMessage, Options
from pgmta.postgres.link import Link
from pgmta.store.queue.enqueue import Enqueue
from pgmta.store.queue.submit import Mail, Submission

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
    await Enqueue(link).commit([message])  # without options by the statement
    assert stored(db) == by_sql
    db.execute("DELETE FROM queue")
    await Enqueue(link).commit([replace(message, options=given)])  # by queue_put
    await link.close()
    assert stored(db) == by_sql
    assert len(by_sql) == 1 + len(recipients)


async def test_each_way_finds_tls_required(database: str, db: psycopg.Connection) -> None:
    """RFC 8689, section 3: the only field of the name, with the value No."""
    submission = Submission(database, "relay.example")
    for field, wanted in {
        b"TLS-Required: No": True,
        b"tls-required\t:\r\n\tnO ": True,
        b"TLS-Required:No": True,
        b"Tls-Required: No\r\nTLS-Required: No": False,
        b"TLS-Required: No\r\n way": False,
        b"TLS-Required: Yes": False,
        b"X-TLS-Required: No": False,
        b"X: y\r\n\r\nTLS-Required: No": False,
    }.items():
        for before, after in ((b"X: y\r\n", b""), (b"", b"\r\nX: y")):
            content = before + field + after + b"\r\n\r\nx\r\n"
            db.execute("SELECT submit('a@a.example', '{b@b.example}', %b)", (content,))
            await submission.submit([Mail("a@a.example", ["b@b.example"], content)])
            found = db.execute("SELECT tls_optional FROM messages").fetchall()
            db.execute("DELETE FROM queue")
            assert found == [(wanted,)] * 2, content
    await submission.close()


mailboxes = st.sampled_from(
    ["a.b@b.example", "I_+=-@I.INFO", "", None, "a", "é@b.example", "a\n@b.example", "a@b_c.INFO",
     "a@b.example\n", "a@b.", "a@-b", "a b@c", "<a@b>", f"{'a' * 65}@b", "a@[192.0.2.1]",
     f"{'a' * 51}@b.example", f"{'a' * 54}@b.example", f"a@{'b' * 64}"]
)  # fmt: skip
usual = st.just("a.b@b.example")
fields = st.sampled_from(
    [b"S: x\r\n", b"Date: x\r\n", b"date\t:\r\n x\r\n", b"MESSAGE-ID: <I>\r\n",
     b"Message-ID\t:<a>\r\n", b"message-id: <a> \r\n",
     b"Message-ID:\r\n <a>\r\n", b"Message-ID: <a\r\n b>\r\n", b"Message-ID: <\\>\r\n",
     b"Message-ID: <\xe9>\r\n", b"Message-ID:\r\n", b"Message-ID: <%s>\r\n" % (b"x" * 248),
     b"Message-ID: <%s>\r\n" % (b"x" * 249), b"Message-ID: <%s>\r\n" % (b"x" * 997),
     b"RECEIVED: x\r\n" * 101, b"X: \0\r\n", b"X: a\rb\r\n", b"X: a\nb\r\n", b"no field\r\n",
     b" x\r\n", b"\xe9: x\r\n", b"Message-ID: <a>\x0b\r\n", b"TLS-Required: No\r\n",
     b"tls-required\t:\r\n\tNO \r\n", b"TLS-Required: No way\r\n"]
)  # fmt: skip
bodies = st.sampled_from(
    [b"\r\nx\r\n", b"\r\n", b"", b"\r\n\r", b"\r\n\n", b"\r\n\xe9\0", b"\r\n" + b"y" * 8096,
     b"\r\nMessage-ID: <b>\r\n"]
)  # fmt: skip
arrays = st.sampled_from(
    ["%s::text[]", "ARRAY[%s::text[]]", "array_fill((%s::text[])[1], ARRAY[1], ARRAY[0])"]
)
others = st.sampled_from(
    ["", "priority => NULL", "priority => 10", "metadata => NULL", "metadata => '[]'", "key => ''",
     "tenant => NULL", "tenant => ' '", "on_failed => NULL", "on_failed => 'HOLD'", "wake => NULL",
     "once => NULL", "once => true", "send_at => 'infinity'"]
)  # fmt: skip
LONG = (
    "priority => 5, metadata => '{}', key => NULL, tenant => '', on_failed => 'hold',"
    " once => false, wake => false, send_at => NULL"
)


def outcome(db: psycopg.Connection, call: str, values: tuple[Any, ...]) -> object:
    """Call, undo it, and return what it stored or the fields of its error."""
    with db.transaction(force_rollback=True):
        try:
            db.execute(f"SELECT pgmta.{call}".encode(), values)
        except psycopg.Error as error:
            return error.sqlstate, error.diag.message_primary, error.diag.message_detail
        return stored(db)


@pytest.mark.parametrize("locale", [None, "tr", "und-u-ks-level2"])
def test_the_short_way_has_the_outcome_of_the_long_one(
    database: str, db: psycopg.Connection, locale: str | None
) -> None:
    """Also if the caller's collation has other lower letters, or compares without case."""
    collation = ""
    if locale:
        if not db.execute("SELECT true FROM pg_collation WHERE collname = 'tr-x-icu'").fetchone():
            pytest.skip("a server without ICU")
        db.execute(
            "CREATE COLLATION public.theirs (provider = icu, deterministic = false, locale ="
            f" '{locale}')".encode()
        )
        collation = " COLLATE public.theirs"
    db.execute("SET search_path = pgmta, pg_catalog, pg_temp")

    @settings(max_examples=150)
    @given(
        usual | mailboxes,
        st.lists(usual, min_size=1, max_size=1) | st.lists(mailboxes, max_size=2),
        st.lists(fields, min_size=1, max_size=2).map(b"".join),
        bodies,
        st.just("%s::text[]") | arrays,
        st.just("") | others,
    )
    def same(
        sender: str, recipients: list[str], header: bytes, body: bytes, array: str, other: str
    ) -> None:
        name = other.partition(" ")[0]
        long = [each for each in LONG.split(", ") if each.partition(" ")[0] != name]
        head = f"(%s::text{{}}, {array}, %b, "
        short_call = f"submit{head.format(collation)}{other}".removesuffix(", ") + ")"
        long_call = f"submit_any{head.format('')}{', '.join([*long, other] if other else long)})"
        values = (sender, recipients, header + body)
        assert outcome(db, short_call, values) == outcome(db, long_call, values)

    same()
