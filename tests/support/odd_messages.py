"""Messages with odd headers and bodies that are still of the form of RFC 5322, section 2.1."""

from __future__ import annotations

import random
from collections.abc import Iterator

LARGE = 20 << 20
"""Octets of the largest one."""

_WORDS = [b"word", b"a", b"1234", b"=?utf-8?q?f=C3=BCr?=", b"(comment)", b"x.y", b"\xc3\xbc\xff"]
_BLANKS = [b" ", b"  ", b"\t", b" \t ", b"\r\n ", b"\r\n\t", b" \r\n  ", b"\r\n \t"]
_ONCE = [b"To", b"cc", b"SUBJECT", b"Message-ID", b"References", b"Reply-to", b"in-reply-TO"]
_NAMES = [
    b"Comments", b"X-Odd", b"Received", b"MIME-Version", b"Content-Type", b"List-Id",
    b"list-unsubscribe", b"Content-ID", b"X-" + b"y" * 60,
]  # fmt: skip
_FROM = [
    b"ann@a.example", b"Ann <ann@a.example>", b'"Ann, or (b)" <ann@a.example>',
    b"=?utf-8?q?=C3=84nn?=\r\n <ann@a.example>", b"ann@a.example (a comment)",
    b"\r\n\tAnn  B.\r\n <ann@A.Example>", b"Ann \t <ann@a.example> ",
]  # fmt: skip
_LINES = [
    b"", b"", b" ", b"\t", b"  \t ", b".", b"..", b".a", b"some words", b" two  blanks  ",
    b"\ttab\t", b"end \t", b"From here", b"a\tb", b"\xe9\xff 8-bit", b"--", b"=", b"x" * 998,
    b"Subject: no",
]  # fmt: skip


def _value(source: random.Random) -> bytes:
    parts = [source.choice([b"", b" ", b" ", b"  ", b"\t", b"\r\n "])]
    for _ in range(source.choice([0, 1, 2, 3, 5, 40])):
        parts += [source.choice(_WORDS), source.choice(_BLANKS)]
    text = b"".join(parts)
    # a folded line of blanks alone is obsolete, and not what all verifiers read
    while b" \r\n" in text or b"\t\r\n" in text or text.startswith(b"\r\n"):
        text = text.replace(b" \r\n", b"\r\n").replace(b"\t\r\n", b"\r\n").removeprefix(b"\r\n")
    return text.rstrip(b"\r\n") if text.strip() else source.choice([b"", b" ", b" \t"])


def _header(source: random.Random, *, doubled: bool) -> bytes:
    """A header; only a `doubled` one may lack Date, or have a field twice that may be there once.

    opendkim-testmsg looks at no others.
    """
    fields = [(b"From", b" " + source.choice(_FROM))]
    once = source.sample(_ONCE, source.randint(0, len(_ONCE)))
    fields += [(name, b" about" + _value(source)) for name in once]
    if not doubled or source.random() < 0.5:
        fields.append((source.choice([b"Date", b"DATE"]), b" now" + _value(source)))
    names = _NAMES + (_ONCE * 2 if doubled else [])
    for _ in range(source.choice([0, 1, 3, 8, 30])):
        name = source.choice(names)
        fields += [(name, _value(source))] * source.choice([1, 1, 1, 2])
    source.shuffle(fields)
    return b"".join(name + b":" + value + b"\r\n" for name, value in fields)


def _body(source: random.Random) -> bytes:
    lines = [source.choice(_LINES) for _ in range(source.choice([0, 1, 2, 5, 30]))]
    if source.random() < 0.05:
        lines.append(source.randbytes(source.choice([5_000, 70_000])).translate(_TABLE))
    body = b"".join(line + b"\r\n" for line in lines)
    body += b"\r\n" * source.choice([0, 0, 1, 3])
    return body.removesuffix(b"\r\n") if source.random() < 0.2 else body


_TABLE = bytes(b if b not in (0, 10, 13) else 46 for b in range(256))


def odd_messages(number: int, seed: int, *, doubled: bool = False) -> Iterator[bytes]:
    """Yield that many, of which the last is large."""
    source = random.Random(seed)
    for _ in range(number - 1):
        header = _header(source, doubled=doubled)
        end = source.random()
        yield header if end < 0.03 else header + b"\r\n" + _body(source)
    lines = b"".join(source.choice(_LINES) + b"\r\n" for _ in range(10_000))
    size = LARGE if not doubled else 1000
    yield _header(source, doubled=doubled) + b"\r\n" + (lines * (size // len(lines) + 1))[:size]


def on_the_wire(content: bytes) -> bytes:
    """Content as verifiers get it: the end of data adds a missing CRLF."""
    return content if content.endswith(b"\r\n") or not content else content + b"\r\n"


def changed(content: bytes, source: random.Random) -> bytes:
    """Content with one other octet, in its body, its Subject or its From."""
    header, _, body = content.partition(b"\r\n\r\n")
    letters = [n for n, octet in enumerate(body[:100_000]) if chr(octet).isalnum()]
    if letters and source.random() < 0.7:
        place = len(header) + 4 + source.choice(letters)
    else:
        place = content.lower().rindex(b"ann@a") + 1
    other = b"q" if content[place : place + 1] != b"q" else b"r"
    return content[:place] + other + content[place + 1 :]
