"""The same handlers in smtpd and in aiosmtpd's own Controller: same replies, same content.

Replies that differ are in docs/programs/hooks.md with the RFC.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Mailbox, Proxy

from tests.smtpd.handlers import examples
from tests.support.nexthop import NextHop
from tests.support.serving import Client, serving
from tests.support.waiting import free_port

DOCS = Path(__file__).parents[3] / "docs" / "programs" / "hooks.md"
MAIL = ["MAIL FROM:<s@a.example> SIZE=100 BODY=8BITMIME", "RCPT TO:<r@example.com>"]
BODY = "Subject: x\r\nFrom: ü@a.example\r\n\r\n..one\r\n two\t\r\n\r\n.."
CONTENT = ["DATA", f"{BODY}\r\n."]
EVERYTHING = [
    "NOOP", "MAIL FROM:<s@a.example>", "EHLO c.example", "NOOP x", "VRFY r@example.com",
    "VRFY <q@example.com>", "VRFY", *MAIL, "RCPT TO:<other@elsewhere.example>", *CONTENT,
    "RCPT TO:<r@example.com>", "DATA", *MAIL, "RSET", "DATA", "HELO c.example",
    "MAIL FROM:<s@a.example>", MAIL[1], *CONTENT, "EHLO c.example",
    "MAIL FROM:<ü@é.example> SMTPUTF8", "RCPT TO:<ü@é.example>", "RCPT TO:<r@example.com>",
    *CONTENT, "MAIL", "MAIL FROM:<s@a.example> WHAT=1", "RCPT", "EXPN x", "QUIT",
]  # fmt: skip
CLERK = [
    "EHLO c", "MAIL FROM:<missing@a.example> SIZE=5", "RCPT TO:<missing@example.com>",
    "RCPT TO:<two@example.com>", "RCPT TO:<refused@example.com>", *CONTENT,
    *MAIL, "DATA", "spam\r\n.", *MAIL, "DATA", "missing\r\n.", *MAIL, "DATA", "raise\r\n.",
    "RSET", "MAIL FROM:<forget@a.example>", "RCPT TO:<r@example.com>", "RSET",
    "MAIL FROM:<bad@a.example>", "RSET", *MAIL, "RCPT TO:<refused@example.com>",
    *CONTENT, "MAIL FROM:<>", "RCPT TO:<r@example.com>", *CONTENT,
    MAIL[0], "DATA", "QUIT",
]  # fmt: skip
GREETINGS = [
    "EHLO bad.example", "MAIL FROM:<s@a.example>", "HELO bad.example", "EHLO good.example", *MAIL,
    *CONTENT, "HELO good.example", "MAIL FROM:<s@a.example>", "RCPT TO:<r@example.com>", *CONTENT,
]  # fmt: skip

TABLE: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "ExampleHandler": (examples.ExampleHandler, EVERYTHING),
    "Greeter": (examples.Greeter, [*GREETINGS, *EVERYTHING]),
    "OldGreeter": (examples.OldGreeter, EVERYTHING[2:]),
    "Clerk": (examples.Clerk, [*CLERK[:-1], *EVERYTHING]),
    "Forgetter": (examples.Forgetter, ["EHLO c", "MAIL FROM:<bad@a.example>", *MAIL, *CONTENT]),
    "Rescuer": (examples.Rescuer, CLERK),
    "Debugging": (examples.Debug, EVERYTHING),
    "Message": (examples.Parsed, EVERYTHING),
    "AsyncMessage": (examples.AsyncParsed, EVERYTHING),
}


@contextmanager
def controlling(handler: Any) -> Iterator[int]:
    """The port of aiosmtpd's Controller with this handler."""
    port = free_port()
    controller = Controller(
        handler, hostname="127.0.0.1", port=port, server_hostname="mx.example",
        enable_SMTPUTF8=True, data_size_limit=50 << 20,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of handle_EHLO with 4 arguments
        controller.start()
        try:
            yield port
        finally:
            controller.stop()


@contextmanager
def hooked(database: str, handler: Any) -> Iterator[int]:
    """The port of smtpd with this handler."""
    examples.LIVE["handler"] = handler
    hook = {"handler": "tests.smtpd.handlers.examples:live", "arguments": ["handler"]}
    with serving(database, hooks=[hook], limits={"errors": 1000}) as port:
        yield port


def speak(port: int, lines: list[str]) -> list[tuple[str, str]]:
    with Client(port) as client:
        return [("", client.reply()), *((line, client.say(line)) for line in lines)]


def differences(heading: str = "## Replies that differ") -> list[tuple[str, str]]:
    """Pairs of replies that differ, from a section of docs/programs/hooks.md."""
    text = DOCS.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| .*RFC [0-9].* \|$", text, re.MULTILINE)
    assert len(rows) == text.count("\n|") - 2, "a difference has an RFC"
    return rows


def flat(reply: str) -> str:
    return re.sub(r"\b\d+ queued$", "N queued", reply).replace("\n", " / ")


def compare(stock: list[tuple[str, str]], ours: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs of replies that differ; all of them are in the docs."""
    known = differences()
    pairs = set()
    for (line, theirs), (_, mine) in zip(stock, ours, strict=True):
        pair = (flat(theirs), flat(mine))
        if pair[0] != pair[1]:
            assert pair in known, f"{line!r}: {pair}"
            pairs.add(pair)
    return pairs


def without_port(seen: list[Any]) -> str:
    return re.sub(r"('127\.0\.0\.1'), \d+", r"\1, PORT", repr(seen))


@pytest.fixture
def current_loop() -> Iterator[None]:
    """For AsyncMessage, which otherwise makes a loop, and closes it never."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.usefixtures("current_loop")
def test_same_handler_same_replies_same_content(database: str) -> None:
    different = set()
    for name, (make, lines) in TABLE.items():
        stock, ours = make(), make()
        with controlling(stock) as port:
            expected = speak(port, lines)
        with hooked(database, ours) as port:
            said = speak(port, lines)
        different |= compare(expected, said)
        assert without_port(ours.seen) == without_port(stock.seen), name
    assert different == set(differences()), "a line of docs/programs/hooks.md is no difference"


def test_mailbox(database: str, tmp_path: Path) -> None:
    kept: list[str] = []
    for name, serve in (("stock", controlling), ("ours", lambda h: hooked(database, h))):
        with serve(Mailbox(tmp_path / name)) as port:
            said = speak(port, ["EHLO c", *MAIL, *CONTENT, "QUIT"])
        assert [reply[:3] for _, reply in said] == ["220", "250", "250", "250", "354", "250", "221"]
        (file,) = (tmp_path / name / "new").iterdir()
        kept.append(without_port([file.read_bytes()]))
    assert kept[0] == kept[1]


def test_proxy_to_a_real_next_hop(database: str, db: psycopg.Connection) -> None:
    with NextHop() as hop:
        for serve in (controlling, lambda handler: hooked(database, handler)):
            with serve(Proxy("127.0.0.1", hop.port)) as port:
                for sender in ("<s@a.example>", "<>"):
                    said = speak(port, ["EHLO c", f"MAIL FROM:{sender}", MAIL[1], *CONTENT])
                    assert said[-1][1] == "250 OK"
        stock, ours = hop.kept[:2], hop.kept[2:]
        assert [(t.mail, t.recipients, t.content) for t in stock] == [
            (t.mail, t.recipients, t.content) for t in ours
        ]
        assert b"X-Peer: 127.0.0.1\r\n" in (ours[0].content or b"")
    assert db.execute("SELECT sender FROM queue ORDER BY id").fetchall() == [
        ("s@a.example",),
        ("",),
    ]
