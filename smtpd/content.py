"""Take the content of a message off the wire (RFC 5321, sections 4.1.1.4 and 4.5.2; pure)."""

from __future__ import annotations

import re

from stringzilla import find

from pgmta.newlines import Mode, NewlineGuard
from pgmta.octets import replace

_END = b"\r\n.\r\n"
_EMPTY_LINE = b"\r\n\r\n"
# Fields with their continuations (RFC 5322, section 2.2; a space before the colon is section 4.5),
# after the line that a mailbox file puts before a message. Any other line is the body's.
_HEADER = re.compile(
    rb"(?:>*+From [^\n]*+(?:\n|\Z))?+"
    rb"(?:[!-9;-~]++[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z))*+"
)
_RECEIVED = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)
_OVERLAP = 4
_HEADER_LIMIT = 1 << 16
_LOOK = 8192  # octets of a long header after which its end is looked for again


class Collector:
    """Finds the end of data in what is fed, and removes the transparency dots.

    `feed` keeps what it can't decide yet, at most five octets, so that memory stays with whoever
    takes the pieces. Only CRLF ends a line and only CRLF.CRLF ends the data. `dotted` says whether
    the last piece has a dot after a CR or LF of its own.
    """

    def __init__(self) -> None:
        self._held = b"\r\n"  # the line end of the DATA command: ".CRLF" right away is the end
        self._first = True
        self.done = False
        self.dotted = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the next piece of content; afterwards `done` and `rest` tell of the end.

        `rest` is what follows the end of data: pipelined commands.
        """
        if self._held:
            data = self._held + data
        end = _find_end(data)
        if end >= 0:
            self.done = True
            self.rest = data[end + len(_END) :]
            piece, self._held = data[: end + 2], b""
        else:
            keep = _undecided(data)
            piece, self._held = data[: len(data) - keep], data[len(data) - keep :]
        self.dotted = find(piece, b"\n.") >= 0 or find(piece, b"\r.") >= 0
        if self.dotted:
            piece = replace(piece, b"\r\n.", b"\r\n")
        if self._first and piece:
            self._first = False
            piece = piece[2:]
        return piece


def _find_end(data: bytes) -> int:
    """Index of the first end of data, -1 if there is none."""
    end: int = find(data, _END)
    if end >= 0 and data[end : end + len(_END)] != _END:  # a wrong one would cut the message
        end = data.find(_END)
    return end


def _undecided(data: bytes) -> int:
    """Length of the longest tail that could still become CRLF-dot-something."""
    for length in range(min(_OVERLAP, len(data)), 0, -1):
        if _END.startswith(data[-length:]):
            return length
    return 0


class Inspector:
    """Looks at the content as it passes: bare newlines, smuggled ends, hops.

    The header block is known as far as the first 64 KiB go. It ends
    before the first line that is neither a field nor the continuation of one. So content that
    begins with an empty line or with a space has an empty header.
    """

    def __init__(self, bare_newlines: Mode) -> None:
        self._guard = NewlineGuard(bare_newlines)
        self._block = bytearray()  # what may be the header
        self._tail = b"\r\n"  # of it; what comes before the content ends with CRLF
        self._in_header = True
        self._looked = 1
        self._header: bytes | None = None
        self.problem = ""
        """What is wrong with the newlines, or nothing."""

    def see(self, piece: bytes, dotted: bool = True) -> None:
        """Take the next piece of content; `dotted` as the Collector says."""
        self._guard.see(piece, dotted)
        self.problem = self._guard.problem
        if self._in_header:
            self._collect(piece)

    @property
    def octets(self) -> int:
        """Octets in memory."""
        return len(self._block)

    def _collect(self, piece: bytes) -> None:
        seam = (self._tail + piece[:3]).find(_EMPTY_LINE)
        end = seam - len(self._tail) if seam >= 0 else find(piece, _EMPTY_LINE)
        if seam >= 0 or end >= 0:
            self._in_header = False
            piece = piece[: max(0, end + 2)]
        self._block += piece[: _HEADER_LIMIT - len(self._block)]
        if self._in_header and len(self._block) > self._looked * _LOOK:
            self._look()
        if len(self._block) >= _HEADER_LIMIT:
            self._in_header = False
        self._tail = (self._tail + piece[-3:])[-3:]

    def _look(self) -> None:
        """Keep no more of a body that begins without an empty line."""
        self._looked += len(self._block) // _LOOK
        match = _HEADER.match(bytes(self._block[: self._block.rfind(b"\n") + 1]))
        end = match.end() if match else 0
        if end < self._block.rfind(b"\n") + 1:
            del self._block[end:]
            self._in_header = False

    def end(self) -> None:
        """The content is complete."""
        self._in_header = False
        self._guard.end()
        self.problem = self._guard.problem

    @property
    def header(self) -> bytes:
        """The header block, once `end` was called."""
        if self._header is None:
            match = _HEADER.match(bytes(self._block))
            self._header = match[0] if match else b""
        return self._header

    @property
    def hops(self) -> int:
        """Received fields of the header."""
        return len(_RECEIVED.findall(self.header))

    def loops(self, limit: int) -> bool:
        """Whether there are more of them than the limit; no is mostly cheap to tell."""
        return self._block.lower().count(b"received:") > limit and self.hops > limit
