"""Find newlines in content that servers understand differently (RFC 5321, section 2.3.8; pure).

Only CRLF ends a line. A lenient server takes a bare CR or LF for a line end as well, and may drop
NULs. For such a server a dot between them is alone on its line and ends the data. It takes the
rest for commands. The dot does not follow a CRLF, so it gets no transparency dot on its way out.
"""

from __future__ import annotations

import re
from typing import Literal

from stringzilla import count, find

Mode = Literal["guard", "reject"]

BARE = "Bare CR or LF is not allowed"
SMUGGLED = "A lone dot after a bare CR or LF, or beside NUL, is not allowed"

# The character before distinguishes a bare LF from the end of a CRLF; so windows begin with one
# more character.
_BARE_NEWLINE = re.compile(rb"\r(?!\n)|(?<=[^\r])\n")
# A dot that gets no transparency dot, alone on its line for a server that drops NULs. The pattern
# begins with a set of characters, because a search for a set is quick.
_SMUGGLED_END = re.compile(rb"[\r\n](?:\0+|(?<=\r)|(?<=[^\r]\n))\.\0*[\r\n]")
_NULS = re.compile(rb"\0+")
_CRLF = b"\r\n"
_BEFORE_CUT_OCTETS = 5  # of a smuggled end that two windows share: any octet, LF, NUL, dot, NUL
_AFTER_CUT_OCTETS = 4  # of such an end: NUL, dot, NUL, CR


class NewlineGuard:
    """Checks content that arrives in buffers or parts; `problem` has the first problem, or is ''.

    `guard` refuses a smuggled end of data. `reject` refuses every bare CR and LF as well. The
    content begins after a CRLF: that of the DATA command or of a header field.
    """

    def __init__(self, mode: Mode) -> None:
        self.strict = mode == "reject"
        self.tail = _CRLF  # a possible beginning of a smuggled end, each run of NULs as one
        self.cr = False
        """Whether the last octet was a CR; known only if every bare newline is refused."""
        self.problem = ""

    def see(self, octets: bytes, dotted: bool | None = None) -> None:
        """Check the next octets; `dotted` says whether a dot follows a CR or LF, if known."""
        if self.problem or not octets:
            return
        if self.strict and self._bare(octets):
            self.problem = BARE
            return
        if dotted is None:
            dotted = _dotted(octets)
        nul = find(octets, b"\0") >= 0
        if (dotted or nul) and _smuggled(octets, nul):
            self.problem = SMUGGLED
            return
        window = self.tail + (_head(octets) if nul else octets[:_AFTER_CUT_OCTETS])
        if b"." in window and _smuggled(window, True):
            self.problem = SMUGGLED
            return
        tail = _collapsed_tail(octets) if nul else octets[-_BEFORE_CUT_OCTETS:]
        self.tail = tail if len(tail) == _BEFORE_CUT_OCTETS else _collapsed_tail(self.tail + tail)

    def check_end(self) -> None:
        """Check the end of the content, with the final CRLF that it may lack."""
        if not self.tail.endswith(_CRLF):
            self.see(_CRLF)

    def _bare(self, octets: bytes) -> bool:
        window = (b"\r" if self.cr else b"-") + octets
        self.cr = octets.endswith(b"\r")  # the LF of this CR may come with the next octets
        return _has_bare(window[:-1] if self.cr else window)


def check(content: bytes, mode: Mode) -> str:
    """Return the problem of the whole content, or ''."""
    if mode == "guard" and find(content, b"\0.") < 0 and _doubled(content):
        return ""
    guard = NewlineGuard(mode)
    guard.see(content)
    guard.check_end()
    return guard.problem


def _dotted(octets: bytes) -> bool:
    return bool(find(octets, b"\n.") >= 0 or find(octets, b"\r.") >= 0)


def _smuggled(window: bytes, nul: bool) -> bool:
    if nul:
        return bool(_SMUGGLED_END.search(window))
    # the pattern is slow if many lines begin with dots
    if _doubled(window):
        return False
    if window.startswith(b"\n"):  # after a CRLF, or already checked in the last window
        window = b"\r" + window
    return bool(
        find(window, b"\r.\r") >= 0
        or find(window, b"\r.\n") >= 0
        or count(window, b"\n.\r") != count(window, b"\r\n.\r", allowoverlap=True)
        or count(window, b"\n.\n", allowoverlap=True) != count(window, b"\r\n.\n")
    )


def _doubled(window: bytes) -> bool:
    """Return whether each dot after a CR or LF follows a CRLF, and so gets a transparency dot."""
    if find(window, b"\r.") >= 0:
        return False
    dots: int = count(window, b"\n.")
    return not dots or dots == count(window, b"\r\n.")


def _has_bare(window: bytes) -> bool:
    if count(window, _CRLF) * 2 == count(window, b"\r") + count(window, b"\n"):
        return False
    return bool(_BARE_NEWLINE.search(window))


def _head(octets: bytes) -> bytes:
    """Return the first octets, each run of NULs as one."""
    size = _AFTER_CUT_OCTETS
    head = octets[:size]
    while b"\0" in head:
        head = _NULS.sub(b"\0", octets[:size])
        if len(head) >= _AFTER_CUT_OCTETS or size >= len(octets):
            return head[:_AFTER_CUT_OCTETS]
        size *= 8
    return head


def _collapsed_tail(octets: bytes) -> bytes:
    """Return the last octets, each run of NULs as one."""
    size = _BEFORE_CUT_OCTETS
    tail = octets[-size:]
    while b"\0" in tail:
        tail = _NULS.sub(b"\0", octets[-size:])
        if len(tail) >= _BEFORE_CUT_OCTETS or size >= len(octets):
            return tail[-_BEFORE_CUT_OCTETS:]
        size *= 8
    return tail
