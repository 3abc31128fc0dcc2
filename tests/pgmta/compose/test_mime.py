"""Composed content is read back as it was given, and keeps the limits of the RFCs."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings

from pgmta.compose.mime import compose_head
from pgmta.compose.parts import parts_of
from tests.support.composing import (
    IDENTITY,
    Attachment,
    compose_tail,
    expected,
    files,
    kind_of,
    params,
    read_by_email,
)

_WORD = re.compile(rb"=\?[^?\s]*\?[^?\s]*\?[^?\s]*\?=")


def composed(given: dict[str, Any], attachments: list[Attachment]) -> bytes:
    if given.get("html") is None:
        attachments = [each for each in attachments if not each.content_id]
    parts = parts_of({**given, "tail": kind_of(attachments)})
    return compose_head(parts, IDENTITY) + compose_tail(parts, IDENTITY, attachments)


@given(params(), files(inline=True))
@settings(max_examples=500)
def test_email_reads_it_back(given: dict[str, Any], attachments: list[Attachment]) -> None:
    if given.get("html") is None:
        attachments = [each for each in attachments if not each.content_id]
    content = composed(given, attachments)
    assert read_by_email(content) == expected(given, attachments)


@given(params(), files(inline=True))
@settings(max_examples=300)
def test_lines(given: dict[str, Any], attachments: list[Attachment]) -> None:
    content = composed(given, attachments)
    assert content == composed(given, attachments)
    assert content.endswith(b"\r\n")
    assert content.count(b"\r\n") == content.count(b"\r") == content.count(b"\n")
    lines = content.split(b"\r\n")
    assert max(map(len, lines)) <= 998
    header, _, body = content.partition(b"\r\n\r\n")
    assert body.isascii()
    assert not re.search(rb"^From |^\.\r$", body, re.MULTILINE) or b": 7bit" in content
    addresses = "".join(box[1] for box in [given["from"], *given.get("to", []), *given.get("cc", []),
                                           *given.get("reply_to", [])])  # fmt: skip
    assert header.isascii() == addresses.isascii()
    for line in header.split(b"\r\n"):
        assert line.strip()
        if _WORD.search(line):
            assert len(line.decode()) <= 76
        for word in _WORD.findall(line):
            assert len(word) <= 75
        # a longer line has no further place at which it could be folded
        assert len(line.decode()) <= 78 or line.strip().count(b" ") <= 2
