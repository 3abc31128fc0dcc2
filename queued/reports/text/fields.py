"""Values of header fields and of the fields of RFC 3464, made safe from hostile text (pure)."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime
from functools import lru_cache

from pgmta.config.types import without_port
from pgmta.mail.telephone import is_number
from pgmta.mail.text import printable

_LINE_OCTETS = 76  # a longer line is folded (RFC 5322, section 2.1.1)
_MAX_LINE_OCTETS = 900  # of a line that can't be folded at a space; RFC 5322 permits 998
_XTEXT = re.compile(r"\+([0-9A-F]{2})")
_EMBEDDED = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}")
_TYPE = re.compile(r"[A-Za-z0-9-]{1,64}")
_BLANKS = re.compile(r"\s+")
_ENCODED_IN_UTF8 = frozenset("\\+=")  # not in utf-8-addr-xtext (RFC 6533, section 3)


def text_of(value: str, *, utf8: bool) -> str:
    """Return a text as one printable line; without `utf8` a ? is in place of other characters."""
    if value.isascii() and value.isprintable():
        return value
    value = printable(_BLANKS.sub(" ", value.strip()))
    return value if utf8 else value.encode("ascii", "replace").decode("ascii")


def folded(name: str, value: str) -> str:
    """Return the field with its CRLF; a long one is folded at spaces, and if it must be, in words.

    No octet of the value is lost when the field is unfolded, unless a word was cut. Spaces around
    the value go: a line of spaces alone may end the header for some readers (RFC 5322, 3.2.2).
    """
    if len(name) + len(value) + 2 <= _LINE_OCTETS and value.isascii():
        return f"{name}: {value}\r\n"
    start = line = f"{name}:"
    lines, used = [], len(line)
    for word in value.split():
        size = len(word.encode()) + 1
        if used + size > _LINE_OCTETS and line not in ("", start):
            lines.append(line)
            line, used = "", 0
        while size > _MAX_LINE_OCTETS:
            cut = word.encode()[:_MAX_LINE_OCTETS].decode("utf-8", "ignore")
            lines.append(f"{line} {cut}")
            line, used, word = "", 0, word[len(cut) :]
            size = len(word.encode()) + 1
        if word:
            line += " " + word
            used += size
    return "\r\n".join((*lines, line) if line else lines) + "\r\n"


def whole(name: str, value: str) -> str:
    """Return a field of an address with its CRLF: spaces of its value may have a meaning."""
    field = f"{name}: {value}\r\n"
    short = len(field) * 4 <= _MAX_LINE_OCTETS or len(field.encode()) <= _MAX_LINE_OCTETS
    return field if short else folded(name, value)


def from_xtext(value: str) -> str:
    """Return the text that xtext stands for (RFC 3461, section 4)."""
    if "+" not in value:
        return value
    octets = _XTEXT.sub(lambda match: chr(int(match[1], 16)), value)
    try:
        return octets.encode("latin-1").decode()
    except UnicodeError:
        return octets


def typed_address(address: str, *, utf8: bool, kind: str = "") -> str:
    """Return `rfc822; address`, or `utf-8; address` for one beyond ASCII (RFC 6533, section 3).

    Without `utf8` the address is in ASCII: other characters have the form of utf-8-addr-xtext. No
    type is registered for telephone numbers.
    """
    if is_number(address):
        return f"X-E164; {text_of(address, utf8=False)}"
    if address.isascii() and kind != "utf-8":
        return f"{kind or 'rfc822'}; {text_of(address, utf8=False)}"
    address = text_of(address, utf8=True)
    return f"utf-8; {address if utf8 else _embedded(address)}"


def original_recipient(orcpt: str, *, utf8: bool) -> str:
    """Return the value of Original-Recipient for an ORCPT; '' if it is none (RFC 3461, 4.2)."""
    kind, semicolon, value = orcpt.partition(";")
    if not semicolon or not value or not _TYPE.fullmatch(kind):
        return ""
    address = from_xtext(value)
    if not address.strip():
        return ""
    if kind.lower() == "utf-8":
        return typed_address(_EMBEDDED.sub(_character, address), utf8=utf8, kind="utf-8")
    return f"{kind}; {text_of(address, utf8=utf8)}"


def _embedded(address: str) -> str:
    return "".join(
        char if "!" <= char <= "~" and char not in _ENCODED_IN_UTF8 else f"\\x{{{ord(char):X}}}"
        for char in address
    )


def _character(match: re.Match[str]) -> str:
    number = int(match[1], 16)
    return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else match[0]


@lru_cache(maxsize=4096)
def mta(host: str) -> str:
    """Return `dns; host` for a host with or without port (RFC 3464, section 2.1.2).

    An address becomes an address literal.
    """
    name = without_port(text_of(host, utf8=False).strip())
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    try:
        address = ipaddress.ip_address(name.removeprefix("IPv6:"))
    except ValueError:
        return f"dns; {name[:255]}"
    return f"dns; [{address}]" if address.version == 4 else f"dns; [IPv6:{address}]"


@lru_cache(maxsize=1024)
def day(moment: datetime) -> str:
    """Return a time for readers of any language: 2026-11-23 07:26 UTC."""
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M UTC}"
