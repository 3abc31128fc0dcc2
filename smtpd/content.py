"""Take the content of a message off the wire (RFC 5321, sections 4.1.1.4 and 4.5.2; pure)."""

from __future__ import annotations

import re

from stringzilla import count, find, split

_END = b"\r\n.\r\n"
# The character before tells a bare LF from the end of a CRLF; windows always begin with one more.
_BARE = re.compile(rb"\r(?!\n)|(?<=[^\r])\n")
# A dot alone after a bare CR or LF. It is not after a CRLF, so it gets no transparency dot when it
# is sent on, and a lenient server may take it for the end of data and read commands after it.
_SMUGGLED = re.compile(rb"\.[\r\n](?:(?<=[^\r]\n\.[\r\n])|(?<=\r\.[\r\n]))")
_ODD = (b"\n.\n", b"\r.\r", b"\r.\n")  # what mail does not have unless something is wrong
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
        self.dotted = find(piece, b"\n.") >= 0 or find(piece, b"\r.") >= 0
        if self.dotted:
            piece = b"\r\n".join(split(piece, b"\r\n."))
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
        elif _smuggled(self._tail + piece[:_REACH]) or (dotted and _smuggled(piece)):
            self.problem = "A lone dot after a bare CR or LF is not allowed"

    def end(self) -> None:
        """The content is complete."""
        self._in_header = False
        self.hops = len(_RECEIVED.findall(self.header))


def _smuggled(window: bytes) -> bool:
    # a quick look, as the pattern is slow where lines begin with dots
    if not any(find(window, odd) >= 0 for odd in _ODD):
        lone: int = count(window, b"\n.\r")
        if not lone or lone == count(window, b"\r\n.\r"):
            return False
    return bool(_SMUGGLED.search(window))


def _has_bare(window: bytes) -> bool:
    if count(window, b"\r\n") * 2 == count(window, b"\r") + count(window, b"\n"):
        return False
    return bool(_BARE.search(window))
