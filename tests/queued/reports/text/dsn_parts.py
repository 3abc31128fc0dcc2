"""Read a composed DSN by its octets, and by Python's email."""

from __future__ import annotations

import email
import re
from dataclasses import dataclass
from email.message import Message

from queued.reports.text.dsn import Dsn

Fields = list[tuple[str, str]]


def octets(dsn: Dsn) -> bytes:
    """The whole message, if its content does not stream."""
    assert isinstance(dsn.content, bytes)
    whole = dsn.head + dsn.content + dsn.tail
    assert len(whole) == dsn.size
    return whole


def fields(block: bytes) -> Fields:
    """The fields of a header or of a block of delivery-status, unfolded."""
    unfolded = re.sub(rb"\r\n(?=[ \t])", b"", block).decode()
    lines = unfolded.removesuffix("\r\n").split("\r\n") if unfolded else []
    pairs = [line.partition(": ") for line in lines]
    assert all(re.fullmatch(r"[!-9;-~]+", name) and colon for name, colon, _ in pairs), lines
    return [(name, value) for name, _, value in pairs]


@dataclass
class Parts:
    """The parts of a DSN."""

    header: Fields
    text_head: Fields
    text: bytes
    status_head: Fields
    blocks: list[Fields]
    original_head: Fields
    original: bytes
    message: Message

    @property
    def recipients(self) -> list[dict[str, str]]:
        """The fields of each recipient."""
        return [dict(block) for block in self.blocks[1:]]


def parts(dsn: Dsn) -> Parts:
    """Take a DSN apart."""
    whole = octets(dsn)
    head, _, body = whole.partition(b"\r\n\r\n")
    header = fields(head + b"\r\n")
    found = re.search(r'boundary="([^"]+)"', dict(header)["Content-Type"])
    assert found
    delimiter = b"--" + found[1].encode()
    start, text, status, original, rest = (b"\r\n" + body).split(b"\r\n" + delimiter)
    assert (start, rest) == (b"", b"--\r\n")
    heads, bodies = [], []
    for part in (text, status, original):
        assert part.startswith(b"\r\n")
        one, empty, two = part[2:].partition(b"\r\n\r\n")
        assert empty
        heads.append(fields(one + b"\r\n"))
        bodies.append(two)
    blocks = [fields(block + b"\r\n") for block in bodies[1].rstrip(b"\r\n").split(b"\r\n\r\n")]
    return Parts(
        header,
        heads[0],
        bodies[0],
        heads[1],
        blocks,
        heads[2],
        bodies[2],
        email.message_from_bytes(whole),
    )
