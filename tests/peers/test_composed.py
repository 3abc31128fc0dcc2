"""Dovecot sees the structure of composed mail as it was meant (BODYSTRUCTURE of RFC 3501)."""

from __future__ import annotations

import json
import re
import smtplib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pgmta.compose.mime import compose_head
from pgmta.compose.parts import parts_of
from tests.peers.servers import Dovecot, dovecot
from tests.support.composing import IDENTITY, Attachment, compose_tail, files, kind_of, params

pytestmark = pytest.mark.needs("dovecot-core", "dovecot-lmtpd", "root")
MAILS = 500
_TOKEN = re.compile(r'\s*(?:([()])|"((?:[^"\\]|\\.)*)"|\{(\d+)\}\r?\n|([^\s()"]+))')


@pytest.fixture
def mailboxes(place: Path) -> Iterator[Dovecot]:
    with dovecot(place / "dovecot") as running:
        yield running


def test_structure(place: Path, mailboxes: Dovecot) -> None:
    made = _made()
    with smtplib.LMTP("127.0.0.1", mailboxes.lmtp) as client:
        for content, _ in made:
            client.sendmail("shop@peer.test", ["reader@peer.test"], content)
    config = place / "dovecot" / "dovecot.conf"
    command = ["doveadm", "-c", str(config), "-f", "json", "fetch", "-u", "reader"]
    answer = subprocess.run(
        [*command, "seq imap.bodystructure", "all"], capture_output=True, check=True, timeout=60
    )
    rows = sorted(json.loads(answer.stdout), key=lambda row: int(row["seq"]))
    seen = [_tree(_parsed(row["imap.bodystructure"])) for row in rows]
    # the order of mail that comes within a second is open
    assert sorted(map(repr, seen)) == sorted(repr(tree) for _, tree in made)


def _made() -> list[tuple[bytes, Any]]:
    """Return contents and the structures that they have to have."""
    made = []

    @given(params(utf8=False), files(inline=True))
    @settings(
        max_examples=MAILS,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def make(given: dict[str, Any], attachments: list[Attachment]) -> None:
        if given.get("html") is None:
            attachments = [each for each in attachments if not each.content_id]
        parts = parts_of({**given, "tail": kind_of(attachments)})
        content = compose_head(parts, IDENTITY) + compose_tail(parts, IDENTITY, attachments)
        made.append((content, _wanted(given, attachments, content)))

    make()
    return made


def _wanted(given: dict[str, Any], attachments: list[Attachment], content: bytes) -> Any:
    body, html = given.get("body"), given.get("html")
    leaves = [
        (
            each.type.partition(";")[0],
            "base64",
            each.name,
            f"<{each.content_id}>" if each.content_id else None,
        )
        for each in attachments
    ]
    encodings = iter(re.findall(rb"charset=utf-8\r\nContent-Transfer-Encoding: (\S+)\r\n", content))
    text = None
    if body is not None or html is None:
        text = ("text/plain", next(encodings).decode(), None, None)
    tree: Any = text
    if html is not None:
        tree = ("text/html", next(encodings).decode(), None, None)
        if pictures := [leaf for leaf in leaves if leaf[3]]:
            tree = ("related", [tree, *pictures])
        if text:
            tree = ("alternative", [text, tree])
    others = [leaf for leaf in leaves if not leaf[3]]
    return ("mixed", [tree, *others]) if others else tree


def _parsed(text: str) -> list[Any]:
    """Return the nested lists of an answer of IMAP."""
    stack: list[list[Any]] = [[]]
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match, text[position:]
        position = match.end()
        mark, quoted, size, atom = match.groups()
        if mark == "(":
            stack.append([])
        elif mark == ")":
            inner = stack.pop()
            stack[-1].append(inner)
        elif size is not None:
            stack[-1].append(text[position : position + int(size)])
            position += int(size)
        elif quoted is not None:
            stack[-1].append(re.sub(r"\\(.)", r"\1", quoted))
        else:
            stack[-1].append(None if atom.upper() == "NIL" else atom)
    return stack[0][0] if len(stack[0]) == 1 else stack[0]


def _tree(node: list[Any]) -> Any:
    if isinstance(node[0], list):
        subtype = next(index for index, each in enumerate(node) if not isinstance(each, list))
        return (node[subtype].lower(), [_tree(each) for each in node[:subtype]])
    media, subtype, _, content_id, _, encoding = node[:6]
    disposition = node[9 if media.lower() == "text" else 8]
    name = None
    if disposition:
        parameters = dict(zip(disposition[1][::2], disposition[1][1::2], strict=True))
        name = "".join(parameters.values())
        if "filename" not in parameters:  # RFC 2231, of one or more sections
            name = unquote(name.removeprefix("utf-8''"))
    return (f"{media}/{subtype}".lower(), encoding.lower(), name, content_id)
