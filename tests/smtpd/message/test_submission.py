"""Headers of users: fields that are added, removed and checked (RFC 6409)."""

from __future__ import annotations

import email
import email.policy
import email.utils
import re
from typing import Any

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta.accounts.login import Login
from pgmta.intake.header_completion import HeaderCompletion, HeaderRefusal
from pgmta.mail.header import header_block
from smtpd.commands import commands
from tests.support.serving import Client, serving

HOST = "mx.example"


def completed(content: bytes) -> bytes:
    found, refusal = HeaderCompletion(HOST, completes=True).apply(content, whole=True)
    assert refusal is None
    return found


names = st.sampled_from(
    ["Subject", "Bcc", "BCC ", "Resent-Bcc", "Date", "date", "Message-ID", "To", "X-Bcc", "From"]
)
values = st.lists(
    st.sampled_from([" a@b.example", ",\r\n c@d.example", "\r\n\tx", "ü", " Bcc: no", "\n y"]),
    max_size=4,
).map("".join)
headers = st.lists(st.tuples(names, values).map(lambda field: f"{field[0]}:{field[1]}"), max_size=8)
bodies = st.sampled_from(["", "\r\n", "\r\nBcc: in the body\r\n", "\r\n\r\nDate: x\r\n", "\nx"])


@given(headers, bodies)
@example([], "Hello without a header\r\n")
@example([], " a space\r\n")
@example(["Bcc: a"], "")
def test_a_header_is_complete_and_keeps_its_other_fields(fields: list[str], body: str) -> None:
    content = "".join(f"{field}\r\n" for field in fields).encode() + body.encode()
    found = completed(content)
    header = header_block(found)
    lines = [line for line in header.split(b"\n") if line[:1] not in (b" ", b"\t")]
    kept = [
        name.rstrip().lower()
        for name, colon, _ in (line.partition(b":") for line in lines)
        if colon
    ]
    assert b"bcc" not in kept
    assert b"resent-bcc" not in kept
    assert b"date" in kept
    assert b"message-id" in kept
    before = header_block(content)
    for name in (b"subject", b"to", b"x-bcc", b"from"):
        pattern = rb"(?im)^" + name + rb" *:[^\n]*\n(?:[ \t][^\n]*\n)*"
        assert re.findall(pattern, before) == re.findall(pattern, header)
    assert found.endswith(content[len(before) :])
    assert completed(found) == found  # nothing is missing any more


def test_what_is_added() -> None:
    message = email.message_from_bytes(
        completed(b"From: a@b.example\r\nBcc: x@y.example,\r\n z@y.example\r\n\r\nHello\r\n"),
        policy=email.policy.default,
    )
    assert email.utils.parsedate_to_datetime(message["Date"]).utcoffset() is not None
    assert re.fullmatch(r"<[0-9a-f]+\.[0-9a-f]{16}@mx\.example>", message["Message-ID"])
    assert message.keys() == ["From", "Date", "Message-ID"]
    assert message.get_content() == "Hello\r\n"


def test_a_header_without_an_end_is_refused() -> None:
    fix = HeaderCompletion(HOST, completes=True)
    assert fix.apply(b"X: " + b"y" * 600_000, whole=False)[1] is HeaderRefusal.TOO_LARGE


SENDERS = ("me@a.example", "@b.example", "@bücher.example", "nonsense")


def user(*senders: str) -> Login:
    """A user with these senders, and else none."""
    return Login("web", "PLAIN", senders=senders)


@pytest.mark.parametrize(
    ("author", "allowed"),
    [
        ("me@a.example", True), ("ME@A.Example", True), ("Me <me@a.example>", True),
        ("anybody@b.example, me@a.example", True), ('"x@y.example" <me@a.example>', True),
        ("=?utf-8?q?me?= <x@b.example>", True), ("me@xn--bcher-kva.example", True),
        ("ü@b.example", True), ("me@a.example (comment)", True),
        ("me@a.example,\r\n x@b.example", True),
        ("you@a.example", False), ("me@sub.b.example", False),
        ("me@a.example, you@a.example", False),
        ('"me@a.example" <x@y.example>', False), ("me@a.example <x@y.example>", False),
        ("x@y.example (me@a.example)", False), ("<me@a.example> <x@y.example>", False),
        ("me@a.example\r\n x@y.example", False), ("", False), ("me", False), ("(" * 3000, False),
        ("group: me@a.example;, x@y.example", False), ("x" * 5000, False),
        ("me@a.example\0", False),
        ("@y.example:me@a.example", False), ("me@nonsense", False), ("\xff@b.example", False),
    ],
)  # fmt: skip
def test_authors(author: str, allowed: bool) -> None:
    fix = HeaderCompletion(HOST, completes=False, may_send=user(*SENDERS).may_send_from)
    raw = author.encode("latin-1" if "\xff" in author else "utf-8")
    for whole in (b"From: " + raw + b"\r\n\r\nx\r\n", b"Subject: x\r\nFROM : " + raw + b"\r\n\r\n"):
        found, refusal = fix.apply(whole, whole=True)
        assert (refusal is None) is allowed, refusal
        assert found == whole


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Subject: x\r\n",
        b"From: me@a.example\r\nFrom: x@y.example\r\n",
        b"X: a\rFrom: x@y.example\r\nFrom: me@a.example\r\n",
        b"From: me@a.example\r\nX: \0\r\n",
    ],
)
def test_a_message_has_one_from(header: bytes) -> None:
    fix = HeaderCompletion(HOST, completes=False, may_send=user(*SENDERS).may_send_from)
    assert fix.apply(header + b"\r\n", whole=True)[1] is HeaderRefusal.AUTHOR_DENIED


@pytest.mark.parametrize("name", ["any", "@own.example", "web", ""])
def test_a_name_that_is_no_address_allows_no_sender(name: str) -> None:
    assert not Login(name, "PLAIN").may_send_from("x@own.example", "own.example")
    assert Login("x@own.example", "PLAIN").may_send_from("x@own.example", "own.example")


@given(st.lists(st.sampled_from(["a@b.example", "@b.example", "A@C.example"]), max_size=3))
def test_senders(senders: list[str]) -> None:
    assert user(*senders, "any").may_send_from("x@y.example", "y.example")
    assert user(*senders).may_send_from("a@B.example", "b.example") == any(
        sender[-10:] == "@b.example" for sender in senders
    )
    assert user(*senders).may_send_from("a@c.example", "c.example") == ("A@C.example" in senders)
    assert not user('""@b.example').may_send_from("x@b.example", "b.example")
    for one, other in (("a", '"a"'), ('"a"', "a"), (r'"\a"', '"a"')):  # the same mailbox
        assert user(f"{one}@b.example").may_send_from(f"{other}@b.example", "b.example")


def test_messages_of_every_size(
    database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose beginning is stored before their end has come, by DATA and by BDAT."""

    def auth(self: commands.Commands, _: str) -> str:
        self.log_in(Login("u", "PLAIN", senders=("me@a.example",)))
        return "235 2.7.0 Ok"

    monkeypatch.setitem(commands.Commands.METHODS, b"AUTH", auth)
    config: dict[str, Any] = {
        "listen": [{"role": "submission", "tls": "none", "auth_without_tls": True}],
        "submission": {"check_from": True},
        "limits": {"memory": "1MB"},
    }
    long = b"To: " + b",\r\n ".join(b"user%d@example.org" % n for n in range(5000)) + b"\r\n"
    with serving(database, **config) as port, Client(port).hello() as client:
        assert client.say("AUTH")[:3] == "235"
        sent = [
            top + b"From: " + author + b"\r\nBcc: secret@b.example\r\n\r\n"
            + b"0123456789abcdef\r\n" * (size // 18)
            for size in (10, 20_000, 700_000, 2_000_000)
            for top in (b"", long)
            for author in (b"me@a.example", b"x@a.example")
        ]  # fmt: skip
        for number, content in enumerate(sent):
            for command in ("MAIL FROM:<me@a.example>", "RCPT TO:<r@c.example>"):
                assert client.say(command)[:3] == "250"
            if number % 3:
                client.send(b"DATA\r\n" + content + b".\r\n")
                assert client.reply()[:3] == "354"
            else:
                half = len(content) // 2
                client.send(b"BDAT %d\r\n" % half + content[:half])
                client.send(b"BDAT %d LAST\r\n" % (len(content) - half) + content[half:])
                first = client.reply()
                if first[0] == "5":  # the header was seen, and the rest comes too late
                    assert b"x@a" in content
                    assert client.reply()[:3] == "503"
                    continue
            assert client.reply()[:3] == ("250" if b"From: me" in content else "550")
        rows = db.execute(
            "SELECT m.size, coalesce((SELECT string_agg(c.data, ''::bytea ORDER BY c.position) "
            "FROM message_chunks c WHERE c.message_id = m.id), m.body), m.message_id_header "
            "FROM messages m ORDER BY m.id"
        ).fetchall()
    taken = [content for content in sent if b"From: me" in content]
    for (size, found, message_id), content in zip(rows, taken, strict=True):
        found = bytes(found)
        assert size == len(found)
        assert b"secret" not in found
        top, _, rest = content.partition(b"Bcc: secret@b.example\r\n")
        assert re.fullmatch(
            re.escape(top) + rb"Date: [^\r]+ \+0000\r\nMessage-ID: <[0-9a-f.]+@mx\.example>\r\n",
            found[: len(found) - len(rest)],
        )
        assert found.endswith(rest)
        assert (message_id is not None) == (len(top) < 1 << 16)  # it is looked for in so much
