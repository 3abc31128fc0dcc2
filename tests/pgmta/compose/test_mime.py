"""Composed content is read back as it was given, and keeps the limits of the RFCs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmta.compose.mime import MessageIdentity, boundary, compose_head, compose_header
from pgmta.compose.parts import Parts, parts_of
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


@pytest.mark.slow
@given(params(), files(inline=True))
@settings(max_examples=500)
def test_email_reads_it_back(given: dict[str, Any], attachments: list[Attachment]) -> None:
    if given.get("html") is None:
        attachments = [each for each in attachments if not each.content_id]
    content = composed(given, attachments)
    assert read_by_email(content) == expected(given, attachments)


@given(params(), files(inline=True))
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
    boxes = [
        given["from"],
        *(box for key in ("to", "cc", "reply_to") for box in given.get(key, [])),
    ]
    assert header.isascii() == all(address.isascii() for _, address in boxes)
    for line in header.split(b"\r\n"):
        assert line.strip()
        if _WORD.search(line):
            assert len(line.decode()) <= 76
        for word in _WORD.findall(line):
            assert len(word) <= 75
        # a longer line has no further place at which it could be folded
        assert len(line.decode()) <= 78 or line.strip().count(b" ") <= 2


ANY = st.text(max_size=60)
LINES = st.sampled_from(
    ["\r\nBcc: x@y.example", "\nX: y", "\r\n\r\nbody", "\r", "\x00", "\ud800", "a"]
)


@given(st.lists(st.one_of(ANY, LINES), min_size=9, max_size=9))
def test_no_value_adds_a_line(values: list[str]) -> None:
    """Parts that were not checked raise an error, or have just their own fields."""
    name, address, subject, field, value, other, body, html, structured = values
    parts = Parts(
        from_=(name, address),
        to=((other, "ann@example.com"),),
        subject=subject,
        body=body,
        html=html,
        headers=((field, value), ("X-A", other), ("List-Id", structured)),
    )
    try:
        header = compose_header(parts, IDENTITY).decode()
    except ValueError:
        return
    assert "\r\n\r\n" not in header
    names = [line.partition(":")[0] for line in header.split("\r\n") if line and line[0] != " "]
    assert names == [
        "Date", "From", "To", *["Subject"] * bool(subject), "Message-ID", field, "X-A", "List-Id",
        "MIME-Version", "Content-Type",
    ]  # fmt: skip
    header += compose_head(parts, IDENTITY).decode()
    assert header.count("\r\n") == header.count("\r") == header.count("\n")


ALL_LEVELS = """\
Date: Tue, 28 Jul 2026 07:26:05 +0000
From: "The Shop, Ltd." <shop@example.com>
To: =?utf-8?b?SsO2cmcgR3Jvw58=?= <jörg@müller.example>,
 ann@xn--mller-kva.example
Subject: =?utf-8?q?F=C3=BCr_Sie?=
Message-ID: <42.0123456789abcdef@mail.example.com>
X-Order: 4711
List-Unsubscribe: <https://example.com/u/1>
MIME-Version: 1.0
Content-Type: multipart/mixed;
 boundary="=_42.0123456789abcdefm"

--=_42.0123456789abcdefm
Content-Type: multipart/alternative;
 boundary="=_42.0123456789abcdefa"

--=_42.0123456789abcdefa
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit

Guten Tag

--=_42.0123456789abcdefa
Content-Type: multipart/related; type="text/html";
 boundary="=_42.0123456789abcdefr"

--=_42.0123456789abcdefr
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: quoted-printable

<p>sch=C3=B6n</p>
<img src=3D"cid:logo">

--=_42.0123456789abcdefr
Content-Type: image/png
Content-Transfer-Encoding: base64
Content-ID: <logo>
Content-Disposition: inline;
 filename="l.png"

UE5H
--=_42.0123456789abcdefr--

--=_42.0123456789abcdefa--

--=_42.0123456789abcdefm
Content-Type: application/pdf
Content-Transfer-Encoding: base64
Content-Disposition: attachment;
 filename*=utf-8''%C3%BC.pdf

JVBERg==
--=_42.0123456789abcdefm--
"""


def test_content() -> None:
    """All levels, octet for octet."""
    parts = parts_of(
        {
            "from": ["The Shop, Ltd.", "shop@example.com"],
            "to": [["Jörg Groß", "jörg@müller.example"], ["", "ann@müller.example"]],
            "subject": "Für Sie",
            "body": "Guten Tag",
            "html": '<p>schön</p>\n<img src="cid:logo">\n',
            "headers": {"X-Order": "4711", "List-Unsubscribe": "<https://example.com/u/1>"},
            "tail": "both",
        }
    )
    files = [
        Attachment("ü.pdf", "application/pdf", b"%PDF"),
        Attachment("l.png", "image/png", b"PNG", "logo"),
    ]
    content = compose_head(parts, IDENTITY) + compose_tail(parts, IDENTITY, files)
    assert content.decode().replace("\r\n", "\n") == ALL_LEVELS
    header = compose_header(parts, IDENTITY)
    assert content.startswith(header + b"\r\n--=_")
    assert compose_header(replace(parts, html=None, tail=""), IDENTITY).endswith(
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 7bit\r\n"
    )


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("plain\ttext ", b"7bit"),
        ("x" * 998 + "\n" + "y" * 998, b"7bit"),
        ("x" * 999, b"quoted-printable"),
        ("a\nFrom me", b"quoted-printable"),
        ("From me", b"quoted-printable"),
        ("\x1b[31m", b"quoted-printable"),
        ("\0", b"quoted-printable"),
        ("--=_42.0123456789abcdefm--", b"quoted-printable"),
        ("schöne und lange Texte, " * 40, b"quoted-printable"),
        ("日本語" * 40, b"base64"),
        ("", b"7bit"),
    ],
)
def test_transfer_encoding(text: str, encoding: bytes) -> None:
    parts = Parts(from_=("", "a@example.com"), body=text)
    assert compose_header(parts, IDENTITY).endswith(b"Encoding: " + encoding + b"\r\n")


@pytest.mark.parametrize(
    "bad", ["", "a@b", "<a b@example.com>", "<a@b>\r\nX: y", "<" + "x" * 61 + "@b>", "<a\n@b>"]
)
def test_message_id(bad: str) -> None:
    with pytest.raises(ValueError, match="Message-ID"):
        compose_head(Parts(from_=("", "a@example.com")), MessageIdentity(bad, datetime.now(UTC)))
    assert boundary("<1.x@example.com>", "m") == "=_1.xm"
