"""The character encoding of a list: recognised from all of its octets, or named."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from encodings.aliases import aliases
from typing import BinaryIO

from pgmta.errors import ConfigError
from pgmta.mail.text import UNSTORABLE

_CHUNK_OCTETS = 1 << 20
_BOM_OCTETS = 3
_UTF_16 = "utf-16"
_UTF_16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# codecs that escape characters, such as UTF-7, decode this to another text
_ASCII = 'recipient,"a+AGE-b";\\u0041 ~{'


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding: its name for people, and the codec of Python.

    Decoded with `errors`, an octet that it has no character for becomes a lone surrogate. So a line
    with one is refused, and no other.
    """

    name: str
    codec: str
    mixed: bool = False
    """Whether a file has characters of UTF-8, and octets that are not."""

    @property
    def errors(self) -> str:
        """The error handler of its decoder."""
        return "surrogatepass" if self.is_utf_16 else "surrogateescape"

    @property
    def is_utf_16(self) -> bool:
        """Whether a character has two or four octets."""
        return self.codec.startswith(_UTF_16)

    def fault(self, text: str) -> str:
        """Return what is wrong with a decoded text, '' if nothing is."""
        match = UNSTORABLE.search(text)
        if not match:
            return ""
        code = ord(match[0])
        if code == 0:
            return "has NUL"
        if self.is_utf_16:
            return f"has half of a surrogate pair of UTF-16, 0x{code:04X}"
        return f"has the octet 0x{code - 0xDC00:02X}, which is not in {self.name}"


UTF_8 = Encoding("UTF-8", "utf-8-sig")
"""With a BOM or without one."""

_WINDOWS_1252 = Encoding("windows-1252", "cp1252")


def recognise(file: BinaryIO) -> Encoding:
    """Return the encoding of a file, all of which is read.

    It is UTF-16 or UTF-8 by its BOM. Else it is UTF-8 if all of it is, and windows-1252 if it is
    not. A file of both, as lists have that were joined, is what most of its characters beyond
    ASCII are.
    """
    start = next(_chunks(file), b"")[:_BOM_OCTETS]
    if start.startswith(_UTF_16_BOMS):
        return Encoding("UTF-16", _UTF_16)
    if start.startswith(codecs.BOM_UTF8):
        return UTF_8
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    wrong = right = 0  # octets, and characters of several octets
    for chunk in _chunks(file):
        text = decoder.decode(chunk, not chunk)
        if not text.isascii():
            beyond = len(text) - len(text.encode("ascii", "ignore"))
            lone = len(text) - len(text.encode("utf-8", "ignore").decode())
            wrong += lone
            right += beyond - lone
    return replace(_WINDOWS_1252 if wrong > right else UTF_8, mixed=bool(wrong and right))


def named(name: str) -> Encoding:
    """Return an encoding by its name, as Python has it. Raises ConfigError."""
    try:
        encoding = Encoding(name, codecs.lookup(name).name)
        if encoding.codec == "utf-8":
            return UTF_8
        if not encoding.is_utf_16 and _ASCII.encode().decode(name, encoding.errors) != _ASCII:
            raise UnicodeError
    except LookupError:
        known = [each.replace("_", "-") for each in aliases if _is_of_text(each)]
        near = get_close_matches(name.lower().replace("_", "-"), known, 1)
        advice = f"did you mean {near[0]}?" if near else "utf-8, windows-1252 and utf-16 are some"
        raise ConfigError([f"--encoding {name}: it is unknown; {advice}"]) from None
    except UnicodeError:
        reason = "a list has ASCII as it is, or is UTF-16"
        raise ConfigError([f"--encoding {name}: {reason}"]) from None
    return encoding


def _is_of_text(name: str) -> bool:
    """Return whether Python decodes texts by this codec: not those such as rot13."""
    try:
        b"a".decode(name)
    except LookupError:
        return False
    except UnicodeError:
        pass  # half a character
    return True


def utf_16_fault(file: BinaryIO, encoding: Encoding) -> str:
    """Return the line and the reason why a file is no UTF-16; '' if it may be, or need not be."""
    start = next(_chunks(file))[:_BOM_OCTETS]
    if encoding.codec == _UTF_16 and start and not start.startswith(_UTF_16_BOMS):
        return "1: it has no BOM; --encoding utf-16-le or utf-16-be tells the order of its octets"
    if not encoding.is_utf_16 or file.seek(0, io.SEEK_END) % 2 == 0:
        return ""
    decoder = codecs.getincrementaldecoder(encoding.codec)("surrogatepass")
    line, last = 1, b""
    for chunk in _chunks(file):
        line += decoder.decode(chunk).count("\n")
        last = chunk or last
    return f"{line}: it ends with half of a unit of UTF-16, the octet 0x{last[-1]:02X}"


def order_without_bom(file: BinaryIO) -> str:
    """Return the name of UTF-16 in the order that the NULs of a file tell; '' if they tell none."""
    start = next(_chunks(file))[:1024]
    if start.startswith(_UTF_16_BOMS):
        return ""
    for name, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        if start[first::2].count(0) * 4 > len(start):
            return name
    return ""


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the octets of a file from its beginning; the last chunk is empty."""
    file.seek(0)
    while chunk := file.read(_CHUNK_OCTETS):
        yield chunk
    yield b""
