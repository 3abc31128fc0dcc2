"""The end of data, and what others could take for it (RFC 5321, sections 4.1.1.4, 4.5.2; pure)."""

from __future__ import annotations

from stringzilla import find, translate

from pgmta.mail.newlines import Mode, NewlineGuard
from pgmta.mail.octets import replace

_TO_CR_MARKS = bytes(octet == 13 for octet in range(256))  # a table in which only CR is not 0
_TO_LF_MARKS = bytes(octet == 10 for octet in range(256))  # a table in which only LF is not 0
_END = b"\r\n.\r\n"
_MAX_UNDECIDED_OCTETS = 4


class EndOfData:
    """Takes content off the wire up to its end, and removes the transparency dots.

    Only CRLF ends a line and only CRLF.CRLF ends the data. `feed` keeps at most four
    octets that it can't decide on yet; its caller keeps the content.
    """

    __slots__ = ("_first", "_undecided", "done", "guard", "rest")

    def __init__(self, bare_newlines: Mode) -> None:
        self._undecided = b"\r\n"  # the line end of the DATA command: ".CRLF" right away is the end
        self._first = True
        self.guard = NewlineGuard(bare_newlines)
        """Its `problem` names a wrong newline, or is empty."""
        self.done = False
        self.rest: bytes | None = None
        """The octets after the end of data, once it has come: pipelined commands."""

    def feed(self, data: bytes) -> bytes:
        """Return the next content; `done` says whether it is the last."""
        if self._undecided:
            data = self._undecided + data
        end = find(data, _END)
        if (
            end >= 0 and data[end : end + len(_END)] != _END
        ):  # stringzilla may have found another place, which would cut the message
            end = data.find(_END)
        if end >= 0:
            self.done = True
            self.rest = data[end + len(_END) :]
            content, self._undecided = data[: end + 2], b""
        else:
            keep = _undecided_length(data)
            content, self._undecided = data[: len(data) - keep], data[len(data) - keep :]
        dotted = find(content, b"\n.") >= 0 or find(content, b"\r.") >= 0
        if dotted:
            content = replace(content, b"\r\n.", b"\r\n")
        if self._first and content:
            self._first = False
            content = content[2:]
        guard = self.guard
        # In most content no dot follows a newline, and there is no NUL: the guard can't object.
        if guard.strict:
            # If each CR has an LF after it, and no other LF is there, each dot got its second dot.
            crs, lfs = translate(content, _TO_CR_MARKS), translate(content, _TO_LF_MARKS)
            plain = not guard.cr and b"\0" + crs == lfs + b"\0"
        else:
            plain = not (dotted or b"." in guard.tail + content[:4])
        if not plain or find(content, b"\0") >= 0 or b"\0" in guard.tail:
            guard.see(content, dotted)
        else:
            guard.tail = content[-5:] if len(content) >= 5 else (guard.tail + content)[-5:]
        if self.done and guard.tail[-2:] != b"\r\n":
            guard.check_end()
        return content


def _undecided_length(data: bytes) -> int:
    """Length of the longest tail that could still become CRLF-dot-something."""
    for length in range(min(_MAX_UNDECIDED_OCTETS, len(data)), 0, -1):
        if _END.startswith(data[-length:]):
            return length
    return 0
