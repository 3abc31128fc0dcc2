"""Rewriting: octets that a next hop gets, by route, from memory and as streams."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.nexthop import EXTENSIONS, NextHop, Transaction
from tests.support.system import System

MAP = {"root@host.internal": "admin@example.com", "@host.internal": "@example.com"}
HEADER = (
    b"Bcc: secret@a.example\r\n"
    b"Received: from pc ([10.0.0.7])\r\n\tby host.internal with SMTP; x\r\n"
    b"Received: from other ([192.0.2.7]) by mx.example; x\r\n"
    b"From: \"Root, of (host)\" <root@host.internal>\r\n"
    b"To: a@b.example,\r\n Joe <joe@host.internal> (in the office)\r\n"
    b"Cc: (\r\n"
    b"Subject: =?utf-8?q?=C3=A4?=\r\n"
    b"X-Internal-Id: 42\r\n"
    b"bcc : secret@b.example,\r\n secret@c.example\r\n"
)  # fmt: skip
REWRITTEN = (
    b"Received: from other ([192.0.2.7]) by mx.example; x\r\n"
    b"From: \"Root, of (host)\" <admin@example.com>\r\n"
    b"To: a@b.example,\r\n Joe <joe@example.com> (in the office)\r\n"
    b"Cc: (\r\n"
    b"Subject: =?utf-8?q?=C3=A4?=\r\n"
)  # fmt: skip
ONLY_BCC = re.sub(rb"(?im)^bcc *:.*\r\n(?: .*\r\n)*", b"", HEADER)
BODY = b"\r\nBcc: this stays\r\n.\r\nX-Internal-Id: 43\r\n"


def shaping(folder: Path, **content: Any) -> str:
    """Write the file, and return its path."""
    (folder / "verp.key").write_text("k" * 64)
    (folder / "verp.key").chmod(0o600)
    file = folder / "shaping.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(file)


def route(hop: NextHop, **rewrite: Any) -> dict[str, Any]:
    return {"name": "out", "domain": "b.example", "to": hop.target, "rewrite": rewrite}


ALL = {
    "sender": MAP,
    "from": MAP,
    "to": MAP,
    "remove": ["X-Internal-*"],
    "remove_received": "10.0.0.0/8",
}


def size(transaction: Transaction) -> int:
    found = re.search(r"SIZE=(\d+)", transaction.mail)
    assert found
    return int(found[1])


def test_route_rewrites_what_leaves(system: System, tmp_path: Path) -> None:
    """The trace field of the test goes before the content; larger content streams."""
    ours, others = system.hop(), system.hop()
    queued = system.queued(others, shaping=shaping(tmp_path, routes=[route(ours, **ALL)]))
    large = BODY + b"x" * 70 + b"\r\n" + b"Bcc: stays too\r\n" * 20_000
    trace = b"Received: by test\r\n"
    for body in (BODY, large):
        system.enqueue(
            "a@b.example", "b@c.example", content=HEADER + body, sender="joe@HOST.internal"
        )
        ours.wait_kept(1 if body is BODY else 2)
        system.wait_empty()
        for hop, header, sender in (
            (ours, REWRITTEN, "joe@example.com"),
            (others, ONLY_BCC, "joe@HOST.internal"),
        ):
            sent = hop.transactions[-1]
            assert sent.content == trace + header + body
            assert sent.sender == sender
            if body is BODY:  # of a stream it is the size before
                assert size(sent) == len(trace + header + body)
    log = system.attempts()
    assert {each["sender"] for each in log} == {"joe@HOST.internal"}
    lines = queued.events("not rewritten")
    assert [(line["route"], len(line["fields"])) for line in lines] == [("out", 1)] * 2


def test_equal_hops_with_other_rewriting_share_no_transaction(
    system: System, tmp_path: Path
) -> None:
    hop = system.hop()
    plain = {"domain": "c.example", "to": hop.target}
    file = shaping(tmp_path, routes=[route(hop, **ALL), plain])
    system.queued(hop, shaping=file)
    system.enqueue("a@b.example", "b@c.example", content=HEADER + BODY)
    hop.wait_kept(2)
    system.wait_empty()
    assert {each.content for each in hop.transactions} == {
        b"Received: by test\r\n" + header + BODY for header in (REWRITTEN, ONLY_BCC)
    }


def test_need_of_smtputf8_is_judged_after_rewriting(system: System, tmp_path: Path) -> None:
    old = system.hop(extensions=tuple(e for e in EXTENSIONS if e != "SMTPUTF8"))
    new = system.hop()
    away = {"sender": {"ä@a.example": "a@a.example"}, "from": {"ä@a.example": "a@a.example"}}
    into = {"sender": {"a@a.example": "ä@a.example"}}
    system.queued(
        shaping=shaping(
            tmp_path,
            routes=[route(old, **away), {"to": new.target, "rewrite": into}],
        )
    )
    content = "Bcc: ö@a.example\r\nFrom: <ä@a.example>\r\n\r\nx\r\n".encode()
    number = system.enqueue("a@b.example", content=content, sender="ä@a.example")
    system.ask(f"UPDATE messages SET utf8 = true WHERE id = {number}")
    old.wait_kept(1)
    assert "SMTPUTF8" not in old.transactions[0].mail
    assert old.transactions[0].content == b"Received: by test\r\nFrom: <a@a.example>\r\n\r\nx\r\n"
    system.enqueue("a@c.example", sender="a@a.example")
    new.wait_kept(1)
    system.wait_empty()
    assert new.transactions[0].mail.endswith(" SMTPUTF8")
    assert new.transactions[0].sender == "ä@a.example"
