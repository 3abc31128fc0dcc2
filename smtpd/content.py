"""Take the content of a message off the wire (RFC 5321, sections 4.1.1.4 and 4.5.2; pure)."""

from __future__ import annotations

import re

_END = b"\r\n.\r\n"
# The character before tells a bare LF from the end of a CRLF; windows always begin with one more.
_BARE = re.compile(rb"\r(?!\n)|(?<=[^\r])\n")
# A dot alone after a bare CR or LF. It is not after a CRLF, so it gets no transparency dot when it
# is sent on, and a lenient server may take it for the end of data and read commands after it.
# These patterns begin with the dot, which is rarer than newlines: quick to find nothing.
_SMUGGLED = re.compile(rb"\.[\r\n](?:(?<=[^\r]\n\.[\r\n])|(?<=\r\.[\r\n]))")
_STUFFED = re.compile(rb"\.(?<=\r\n\.)")
_LEADING = re.compile(rb"\.(?<=[\r\n]\.)")  # every dot that the other two may concern
_RECEIVED = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)
_OVERLAP = 4
_REACH = 3  # octets of a smuggled end on either side of a cut, at most
_HEADER_LIMIT = 1 << 18


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
        self.dotted = bool(_LEADING.search(piece))
        if self.dotted:
            piece = _STUFFED.sub(b"", piece)
        if self._first and piece:
            self._first = False
            piece = piece[2:]
        return piece


def _find_end(data: bytes) -> int:
    """Index of the first end of data, -1 if there is none."""
    last = data.rfind(_END)  # which is quicker than find, and mostly there is one at most
    if last < 0 or data.rfind(_END, 0, last + len(_END) - 1) < 0:
        return last
    return data.find(_END)


def _undecided(data: bytes) -> int:
    """Length of the longest tail that could still become CRLF-dot-something."""
    for length in range(min(_OVERLAP, len(data)), 0, -1):
        if _END.startswith(data[-length:]):
            return length
    return 0


class Inspector:
    """Looks at the content as it passes: bare newlines, smuggled ends, hops.

    `header` is the header block, as far as the first 256 KiB go, once `end` was called.
    """

    def __init__(self, bare_newlines: str) -> None:
        self._strict = bare_newlines == "reject"
        self._tail = b"\r\n"
        self._in_header = True
        self.header = b""
        self.hops = 0
        self.problem = ""

    def see(self, piece: bytes, dotted: bool = True) -> None:
        """Take the next piece of content; `dotted` as the Collector says."""
        if not self.problem:
            self._newlines(piece, dotted)
        self._tail = (self._tail + piece[-_REACH:])[-_REACH:]
        if self._in_header:
            self.header += piece
            end = self.header.find(b"\r\n\r\n")
            if end >= 0 or len(self.header) > _HEADER_LIMIT:
                self.header = self.header[: end + 2 if end >= 0 else _HEADER_LIMIT]
                self._in_header = False

    def _newlines(self, piece: bytes, dotted: bool) -> None:
        # a Collector holds back a CR that ends its data: one that ends a piece has no LF after it
        if self._strict and _has_bare(self._tail + piece):
            self.problem = "Bare CR or LF is not allowed"
        elif _SMUGGLED.search(self._tail + (piece if dotted else piece[:_REACH])):
            self.problem = "A lone dot after a bare CR or LF is not allowed"

    def end(self) -> None:
        """The content is complete."""
        self._in_header = False
        self.hops = len(_RECEIVED.findall(self.header))


def _has_bare(window: bytes) -> bool:
    if window.count(b"\r\n") * 2 == window.count(b"\r") + window.count(b"\n"):
        return False
    return bool(_BARE.search(window))
