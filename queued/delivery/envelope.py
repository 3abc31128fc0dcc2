"""What one SMTP transaction is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from pgmta.model import Item
from pgmta.octets import replace


@dataclass(slots=True)
class Envelope:
    """One message for recipients that share a next hop.

    `content` is the message as received, or a function that streams it in pieces; `trace` goes
    before it. `guard` is asked right before the final dot: False means that the lease is not
    ours any more, and the connection is dropped without the dot. `urgent` mail goes before other
    mail of its lane.
    """

    items: list[Item]
    sender: str
    trace: bytes
    size: int
    utf8: bool
    content: bytes | Callable[[], AsyncIterator[bytes]]
    guard: Callable[[list[Item]], bool] = field(repr=False)
    urgent: bool = False


CRLF = b"\r\n"
_DOTTED = b"\r\n."


class DotStuffer:
    """Adds the transparency dots of RFC 5321, section 4.5.2, piece by piece.

    Only a dot after CRLF is doubled: a bare CR or LF ends no line.
    """

    def __init__(self) -> None:
        self._tail = CRLF

    def feed(self, piece: bytes) -> bytes:
        """Return the piece as it goes over the wire."""
        stuffed = replace(piece, _DOTTED, b"\r\n..")
        if self._tail == CRLF and piece[:1] == b".":
            stuffed = b"." + stuffed
        elif self._tail[-1:] == b"\r" and piece[:2] == b"\n.":
            stuffed = b"\n." + stuffed[1:]
        self._tail = piece[-2:] if len(piece) > 1 else (self._tail + piece)[-2:]
        return stuffed

    def end(self) -> bytes:
        """Return the end of data, with the CRLF that the content may lack."""
        return b".\r\n" if self._tail == CRLF else b"\r\n.\r\n"
