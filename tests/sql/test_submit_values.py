"""Arguments of submissions: Python takes each address and content that SQL takes, and alike."""

from __future__ import annotations

import sys

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from pgmta.errors import AddressError
from pgmta.mail.address import mailbox_key, parse_mailbox
from pgmta.mail.header import message_id_header
from pgmta.mail.newlines import check
from pgmta.mail.text import unsafe
from tests.pgmta.mail.test_address import MAILBOXES, UTF8_MAILBOXES
from tests.support.rows import column, fetch

MAIL = b"From: shop@example.org\r\nSubject: Your order\r\n\r\nThank you.\r\n"
BATCH = 200  # texts of one statement

fragments = st.sampled_from(
    [*'ab09.-_@"\\[]:% \t\0\x7f\r\n<>', "IPv6:", "ipv6:", "::", "192.0.2.1", "xn--", "é", "\u202e",
     "\u0301", "例", "\U0001f600", "x" * 63, "y" * 64, "z" * 240, "256", "fe80", "ffff", "0:", "1:"]
)  # fmt: skip
near = st.lists(fragments, max_size=12).map("".join)
texts = st.one_of(
    near,
    near.map(lambda text: f"a@{text}"),
    near.map(lambda text: f"{text}@b.example"),
    near.map(lambda text: f"a@[IPv6:{text}]"),
    near.map(lambda text: f'"{text}"@b.example'),
    st.ip_addresses().map(lambda ip: f"a@[{'IPv6:' if ip.version == 6 else ''}{ip}]"),
    st.ip_addresses(v=6).map(lambda ip: f"a@[IPv6:{ip.exploded}]"),
    st.text(max_size=40),
    st.text(max_size=20).map(lambda text: f"{text}@b.example"),
).map(lambda text: text.replace("\0", "").encode("utf-8", "ignore").decode())  # text has no NUL


@pytest.fixture
def db(template_db: psycopg.Connection) -> psycopg.Connection:
    """A database of all these tests, because none changes it."""
    return template_db


def python(address: str) -> str | None:
    try:
        return parse_mailbox(address, utf8=True)[1]
    except AddressError:
        return None


def domains(db: psycopg.Connection, addresses: list[str]) -> list[tuple[str, str | None]]:
    return db.execute(
        "SELECT address, mailbox_domain(address) FROM unnest(%s::text[]) WITH ORDINALITY"
        " AS given (address, place) ORDER BY place",
        (addresses,),
    ).fetchall()


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(texts, min_size=BATCH // 2, max_size=BATCH))
def test_python_takes_each_address_that_sql_takes(
    template_db: psycopg.Connection, addresses: list[str]
) -> None:
    for address, domain in domains(template_db, addresses):
        assert domain is None or domain == python(address), address


def test_python_and_sql_compare_by_one_key(db: psycopg.Connection) -> None:
    spellings = [
        "A", '"A"', r'"\a"', '"q x"', r'"q\ X"', r'"\q \x"', r'"a\"b"', r'"\a\"b"', r'"\\"',
        r'"\\\a"', '"@"', r'"\@"', '""', '".a"', r'"\.a"', 'a"', '"', r'"\"', "zoë", '"zoë"',
    ]  # fmt: skip
    addresses = ["", "A", '"a"', *(f"{local}@B.example" for local in spellings)]
    keys = "SELECT mailbox_key(a) FROM unnest(%s::text[]) WITH ORDINALITY AS g (a, n) ORDER BY n"
    assert column(db, keys, addresses) == [mailbox_key(address) for address in addresses]


def test_no_unsafe_character_passes(db: psycopg.Connection) -> None:
    characters = [
        chr(n) for n in range(1, sys.maxunicode + 1) if unsafe(chr(n)) and not 0xD800 <= n < 0xE000
    ]
    taken = [a for a, domain in domains(db, [f"a{c}@b.example" for c in characters]) if domain]
    assert taken == []


def test_sql_takes_the_usual_addresses(db: psycopg.Connection) -> None:
    usual = {a: d for a, d in MAILBOXES if len(a.rpartition("@")[0]) <= 64}
    assert dict(domains(db, list(usual))) == usual
    others = [a for a, _ in UTF8_MAILBOXES if not a.rpartition("@")[2].isascii()]
    assert others
    assert {domain for _, domain in domains(db, others)} == {None}
    assert domains(db, ["jürgen@b.example"]) == [("jürgen@b.example", "b.example")]


octets = st.lists(
    st.sampled_from(
        [b"a", b"\r\n", b"\r", b"\n", b".", b"\0", b"\\", b"\xff", b"x" * 65535, b"\r\n."]
    ),
    max_size=8,
).map(b"".join)


@settings(max_examples=20)
@given(st.lists(octets, min_size=10, max_size=20))
def test_python_takes_each_content_that_sql_takes(
    template_db: psycopg.Connection, bodies: list[bytes]
) -> None:
    for body in bodies:
        content = b"S: x\r\n\r\n" + body
        try:
            with template_db.transaction(force_rollback=True):
                template_db.execute("SELECT submit('', '{a@b.example}', %s)", (content,))
            refused = ""
        except psycopg.errors.InvalidParameterValue as error:
            refused = str(error)
        # all that is refused beyond Python is NUL
        assert bool(refused) == bool(check(content, "reject") or b"\0" in content), (
            content,
            refused,
        )


IDS = [
    (b"Message-ID: <a@b>\r\n", "<a@b>"),
    (b"MESSAGE-id \t:<a@b>\r\n", "<a@b>"),
    (b"Message-ID:\r\n <a@b>\r\n\t\r\n x \r\n", "<a@b>  x"),
    (b"X: Message-ID: no\r\n", None),
    (b"X: y\r\n Message-ID: <no>\r\n", None),
    (b"Message-ID: <1>\r\nMessage-ID: <2>\r\n", "<1>"),
    (b"Message-ID: <\\303\\\\@b>\r\n", "<\\303\\\\@b>"),
    (b"Message-ID: <\xc3\xa9@b>\r\n", None),
    (b"Message-ID: <a\x01@b>\r\n", None),
    (b"Message-ID: <%s>\r\n" % (b"x" * 996), f"<{'x' * 996}>"),
    (b"Message-ID: <%s>\r\n" % (b"x" * 997), None),
    (b"Message-ID: \r\n", None),
    (b"Message-IDs: <a@b>\r\n", None),
]


@pytest.mark.parametrize(("field", "value"), IDS)
def test_sql_and_python_find_the_same_message_id(
    db: psycopg.Connection, field: bytes, value: str | None
) -> None:
    for header in (field, b"Subject: x\r\n" + field, field + b"Subject: x\r\n"):
        for content in (header + b"\r\nMessage-ID: <body>\r\n", header):
            assert message_id_header(content) == value
            found = fetch(db, "SELECT submit_message_id(submit_header(%s, 1000000))", content)
            assert found == (value,)


def bad(argument: str, value: object, state: str = "22023") -> tuple[str, object, str]:
    return argument, value, state


BAD = [
    bad("sender", None),
    bad("sender", "a\r\nRCPT TO:<x@y>@b.example"),
    bad("sender", "a@b.example\r\n"),
    bad("sender", f"{'a' * 64}@{'b' * 60}.{'c' * 60}.{'d' * 60}.example"),  # 255 octets
    bad("sender", f"{'a' * 65}@b.example"),
    bad("sender", "<a@b.example>"),
    bad("sender", "postmaster"),
    bad("sender", "a@bücher.example"),
    bad("sender", f"a@{'b' * 64}.example"),
    bad("sender", "a\u202eb@b.example"),
    bad("recipients", None),
    bad("recipients", []),
    bad("recipients", ["r@b.example"] * 1001),
    bad("recipients", ["r@b.example", None]),
    bad("recipients", ["r@b.example", ""]),
    bad("recipients", ["r@b.example", "Bob <bob@b.example>"]),
    bad("recipients", ["r@b.example", "a@b.example,c@b.example"]),
    bad("recipients", ["r@b.example", "a\n@b.example"]),
    bad("recipients", ["r@b.example", "a@b..example"]),
    bad("recipients", ["r@b.example", "a@[192.0.2.256]"]),
    bad("recipients", ["r@b.example", "a@[IPv6:1::2::3]"]),
    bad("recipients", ["r@b.example", "a@例え.example"]),
    bad("content", None),
    bad("content", b""),
    bad("content", MAIL + b"bare\n"),
    bad("content", MAIL + b"bare\rx\r\n"),
    bad("content", MAIL + b"at the end\r"),
    bad("content", MAIL + b"\n.\r\nMAIL FROM:<>\r\n"),  # a lone dot
    bad("content", MAIL + b"\0"),
    bad("content", MAIL.replace(b"\r\n", b"\n")),
    bad("content", b"Just text, and no header.\r\n"),
    bad("content", b"\r\n" + MAIL),
    bad("content", b"Subject: x\r\nno field\r\n\r\n"),
    bad("content", b"X: " + b"y" * 70000 + b"\r\n\r\n"),
    bad("content", b"Received: x\r\n" * 101 + MAIL),
    bad("content", lambda: MAIL + b"x" * (50 << 20)),
    bad("send_at", "infinity"),
    bad("send_at", "-infinity"),
    bad("send_at", "2999-01-01"),
    bad("send_at", "9999-12-31"),
    bad("send_at", "294276-01-01"),
    bad("deadline", "infinity"),
    bad("deadline", "10000-01-01"),
    bad("deadline", "0044-03-15 BC"),
    bad("priority", None),
    bad("priority", -1),
    bad("priority", 10),
    bad("metadata", None),
    bad("metadata", Jsonb([])),
    bad("metadata", Jsonb("x")),
    bad("metadata", Jsonb(None)),
    bad("metadata", Jsonb({"x": "y" * 4000})),
    bad("metadata", Jsonb({"_quarantineid": "x"})),
    bad("metadata", Jsonb({"_partid": ["1"]})),
    *(
        bad("metadata", Jsonb({"_deadline": value}))
        for value in (
            5,
            "",
            "tomorrow",
            "2026-02-30T00:00:00Z",
            "2026-01-02T03:04:05",
            "0000-01-01T00:00:00Z",
            "2026-01-02T24:00:00Z",
            "2026-01-02",
        )
    ),
    bad("key", ""),
    bad("key", "x" * 256),
    bad("key", "a\nb"),
    bad("tenant", None),
    bad("tenant", "x" * 65),
    bad("tenant", "a b"),
    bad("tenant", "a\nb"),
    bad("on_failed", None),
    bad("on_failed", "bounced"),
    bad("once", None),
    bad("wake", None),
]


def name_of(value: object) -> str:
    """Return a short id that is the same in all processes, which that of a function is not."""
    return "made" if callable(value) else str(value)[:60]


@pytest.mark.parametrize(("argument", "value", "state"), BAD, ids=name_of)
def test_bad_input_is_one_clear_error(
    db: psycopg.Connection, argument: str, value: object, state: str
) -> None:
    arguments: dict[str, object] = {
        "sender": "shop@example.org", "recipients": ["bob@example.com"], "content": MAIL,
        argument: value() if callable(value) else value,
    }  # fmt: skip
    types = {"recipients": "text[]", "content": "bytea", "send_at": "timestamptz",
             "deadline": "timestamptz", "priority": "integer", "metadata": "jsonb",
             "once": "boolean", "wake": "boolean"}  # fmt: skip
    named = ", ".join(f"{name} => %({name})s::{types.get(name, 'text')}" for name in arguments)
    with pytest.raises(psycopg.Error) as caught:
        db.execute(f"SELECT submit({named})".encode(), arguments)
    diag = caught.value.diag
    assert (diag.sqlstate, diag.column_name) == (state, argument)
    assert (diag.message_primary or "").startswith(f"{argument}: ")
    assert len(diag.message_primary or "") < 80
    assert diag.message_hint or value is None
    if argument == "recipients" and isinstance(value, list) and len(value) == 2:
        assert (diag.message_detail or "").startswith("Recipient 2 of 2: ")
    assert "\n" not in (diag.message_detail or "")
    assert fetch(db, "SELECT (SELECT count(*) FROM queue) + (SELECT count(*) FROM messages)") == (
        0,
    )
    assert fetch(db, "SELECT count(*) FROM message_chunks") == (0,)


def test_a_u_label_has_the_hint_to_write_an_a_label(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        db.execute("SELECT submit('a@bücher.example', '{b@b.example}', 'S: x')")
    assert "xn--" in (caught.value.diag.message_hint or "")
