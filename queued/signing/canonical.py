"""The canonical form "relaxed" of header fields and content (RFC 6376, sections 3.4.2 and 3.4.4).

All work on octets is done by functions of C, some of which search only: most content needs no
change. No content of a peer makes them slow, because each pass over it is linear.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from stringzilla import find

from pgmta.mail.octets import replace

_CRLF = b"\r\n"
_EMPTY_LINE = b"\r\n\r\n"
_WSP = b" \t"
_OTHER_BLANKS = b"\r\n\v\f"
_BLANK_RUN = re.compile(rb"[ \t]+")
_STEP_OCTETS = 2047  # hashlib hashes more only after it has released the lock of Python
# up to this size content is hashed in such steps: a wait for the lock lasts longer
_MAX_STEPPED_OCTETS = 16_384
_BLANK_LINES = _CRLF * 32_768

type Fields = dict[bytes, list[bytes]]
"""Header fields by name in lower case, in the order of the header: unfolded, without colon."""


def split_header(content: bytes) -> tuple[bytes, int]:
    """Return the header of content, with CRLF after each line, and where its body begins.

    Without an empty line all of it is the header (RFC 5322, section 2.1).
    """
    if content.startswith(_CRLF):
        return b"", len(_CRLF)
    end = find(content, _EMPTY_LINE)
    if end < 0:
        missing = b"" if content.endswith(_CRLF) or not content else _CRLF
        return content + missing, len(content)
    return content[: end + 2], end + 4


def fields_of(header: bytes, wanted: Mapping[bytes, object]) -> Fields:
    """Return the fields whose names are wanted, as they are but unfolded.

    A line without a colon is no field, and ends none.
    """
    fields: Fields = {}
    unfolded = header.replace(b"\r\n ", b" ").replace(b"\r\n\t", b" ")
    for line in unfolded.split(_CRLF):
        name, colon, value = line.partition(b":")
        key = name.rstrip(_WSP).lower()
        if colon and key in wanted:
            if key in fields:
                fields[key].append(value)
            else:
                fields[key] = [value]
    return fields


def relaxed_fields(fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return unfolded fields in canonical form, with CRLF; names are in lower case."""
    values = b"".join([value for _, value in fields])
    # split() takes other octets for blanks too, such as a form feed
    if len(values.translate(None, _OTHER_BLANKS)) == len(values):
        lines = [b"%s:%s\r\n" % (name, b" ".join(value.split())) for name, value in fields]
    else:
        lines = [b"%s:%s\r\n" % (n, _BLANK_RUN.sub(b" ", value).strip(b" ")) for n, value in fields]
    return b"".join(lines)


class BodyHash:
    """The SHA-256 of a body in canonical form, which comes in parts of any size.

    The CRLF that the end of data adds to content without one counts.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._rest = b""  # blanks and a CR at the end of the last part
        self._blank = 0  # number of CRLFs at the end of the octets so far
        self._some = False  # whether there was anything else

    def feed(self, part: bytes) -> None:
        """Take the next part."""
        data, rest = self._rest + part, b""
        if data.endswith(b"\r"):
            data, rest = data[:-1], b"\r"
        bare = data.rstrip(_WSP)
        if len(bare) < len(data):
            data, rest = bare, b" " + rest
        self._rest = rest
        data = _relaxed(data)
        end = _text_end(data)
        if end:
            self._some = True
            for _ in range(self._blank * 2 // len(_BLANK_LINES)):
                self._hash.update(_BLANK_LINES)
            self._take(_BLANK_LINES[: self._blank * 2 % len(_BLANK_LINES)] + data[:end])
            self._blank = 0
        self._blank += (len(data) - end) // 2

    def _take(self, data: bytes) -> None:
        if len(data) > _MAX_STEPPED_OCTETS:
            self._hash.update(data)
            return
        for start in range(0, len(data), _STEP_OCTETS):
            self._hash.update(data[start : start + _STEP_OCTETS])

    def digest(self) -> bytes:
        """Return the hash of the whole body. It may be called once."""
        if self._rest or not self._blank:
            self.feed(_CRLF)
        if self._some:
            self._hash.update(_CRLF)
        return self._hash.digest()


def _relaxed(data: bytes) -> bytes:
    """Return whole lines with one blank for several, and none at their ends."""
    if find(data, b"\t") >= 0:
        data = data.replace(b"\t", b" ")
    while find(data, b"  ") >= 0:
        data = replace(data, b"  ", b" ")
    if find(data, b" \r\n") >= 0:
        data = replace(data, b" \r\n", _CRLF)
    return data


def _text_end(data: bytes) -> int:
    """Return the length without the CRLFs at the end."""
    if not data.endswith(_CRLF):
        return len(data)
    start = len(data.rstrip(_CRLF))
    if (len(data) - start) == 2:
        return start
    tail = data[start:]
    # a lone CR or LF is text
    starts = [1 if tail[:1] == b"\n" else 0, tail.rfind(b"\r\r") + 1]
    if (bare := tail.rfind(b"\n\n")) >= 0:
        starts.append(bare + 2)
    return start + max(starts)
