"""Header fields as octets on the wire have them: folded, encoded, never injected (pure).

A line that can be folded has at most 78 octets, or 76 with an encoded word. No line is over 998
(RFC 5322, section 2.1.1; RFC 2047, section 2). A field is folded before a space that it has.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache

from pgmta.compose.own_fields import is_structured, name_problem, value_problem
from pgmta.mail.address import in_a_labels

_LINE_CHARACTERS = 78  # without CRLF (RFC 5322, section 2.1.1)
_ENCODED_LINE_CHARACTERS = 76  # with encoded words (RFC 2047, section 2)
_MAX_LINE_OCTETS = 998  # without CRLF (RFC 5322, section 2.1.1)
_MAX_ENCODED_WORD_CHARACTERS = 75  # RFC 2047, section 2
_ENCODED_WORD_FRAME_CHARACTERS = len("=?utf-8?q??=")
_MAX_ENCODED_CHARACTER_OCTETS = 12  # four octets, as =F0=9F=98=80 in q; 8 in b
_MAX_PLAIN_NAME_CHARACTERS = 60  # a longer display name may have to be folded
_ENCODED_WORD_START = "=?"  # readers would decode a text that has it, so such a text is encoded
_TOKEN = re.compile(" *[^ ]+")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_NEEDS_BACKSLASH = re.compile(r'(["\\])')
_WITH_BACKSLASH = r"\\\1"
_ALPHANUMERIC = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# octets that q leaves as they are (RFC 2047, section 5, rule 3)
_LITERAL_IN_PHRASE = _ALPHANUMERIC + b"!*+-/"
_LITERAL_IN_TEXT = _LITERAL_IN_PHRASE + b"\"#$%&'(),.:;<>@[\\]^`{|}~"


def _q_table(literal: bytes) -> list[str]:
    """Return the form of each octet in q (RFC 2047, section 4.2)."""
    table = [chr(octet) if octet in literal else f"={octet:02X}" for octet in range(256)]
    table[ord(" ")] = "_"
    return table


_PHRASE_Q, _TEXT_Q = _q_table(_LITERAL_IN_PHRASE), _q_table(_LITERAL_IN_TEXT)
# the first hexadecimal digit of an octet that begins no character in UTF-8
_CONTINUATION_DIGITS = frozenset("89AB")

type Mailboxes = Sequence[tuple[str, str]]
"""Display names, or '', and addresses without brackets."""


def date(moment: datetime) -> str:
    """Return a time as in a field Date (RFC 5322, section 3.3); without a zone it is UTC."""
    return _date(moment.replace(microsecond=0, tzinfo=moment.tzinfo or UTC))


_date = lru_cache(maxsize=64)(format_datetime)


def text_field(name: str, text: str) -> str:
    """Return an unstructured field with its CRLF (RFC 5322, section 3.6.5).

    Any text is read back as it was. A text of ASCII goes as it is, unless readers would change it.
    """
    if not _survives(text):
        return f"{name}:{_encoded(text, len(name) + 1, _TEXT_Q)}\r\n" if text else f"{name}:\r\n"
    if len(name) + len(text) + 2 <= _LINE_CHARACTERS:
        return f"{name}: {text}\r\n"
    words = text.split(" ")
    if len(name) + len(words[0]) + 2 > _MAX_LINE_OCTETS or max(map(len, words)) >= _MAX_LINE_OCTETS:
        return f"{name}:{_encoded(text, len(name) + 1, _TEXT_Q)}\r\n"
    return _folded(name, text)


def _survives(text: str) -> bool:
    """Return whether an unstructured text may go as it is: readers drop or join some spaces."""
    return (
        text.isascii()
        and text.isprintable()
        and _ENCODED_WORD_START not in text
        and "  " not in text
        and text[:1] not in ("", " ")
        and text[-1] != " "
    )


def own_field(name: str, value: str) -> str:
    """Return a field that a program adds, with its CRLF.

    A structured one is folded at spaces only. Spaces around its value go. Raises ValueError for a
    name or value that `own_fields` refuses.
    """
    problem = name_problem(name) or value_problem(name, value)
    if problem:
        raise ValueError(f"headers: {problem}")
    return _folded(name, value.strip(" ")) if is_structured(name) else text_field(name, value)


def _folded(name: str, value: str) -> str:
    """Return a field of printable ASCII; its value neither begins nor ends with a space."""
    if len(name) + len(value) + 2 <= _LINE_CHARACTERS:
        return f"{name}: {value}\r\n"
    out = [name, ":"]
    start = used = len(name) + 1
    for token in _TOKEN.findall(" " + value):
        size = len(token)
        # no fold behind the name, if it can be helped: some readers take its space into the value
        if used + size > _LINE_CHARACTERS and (used > start or used + size > _MAX_LINE_OCTETS):
            out.append("\r\n")
            used = 0
        out.append(token)
        used += size
    out.append("\r\n")
    return "".join(out)


def address_field(name: str, mailboxes: Mailboxes) -> str:
    """Return a field of display names and addresses with its CRLF (RFC 5322, section 3.4).

    Without any it has an empty group. An address has UTF-8 if its local part has (RFC 6532): then
    only next hops with SMTPUTF8 take the message. All else is ASCII. Raises ValueError for an
    address with a line end or a malformed domain; the caller has checked the rest.
    """
    if not mailboxes:
        return f"{name}: undisclosed-recipients:;\r\n"
    out = [name, ":"]
    start = used = len(name) + 1
    comma = ","
    last = len(mailboxes) - 1
    for number, (display, address) in enumerate(mailboxes):
        address = _written(address)
        phrase = _phrase(display)
        if phrase is None:
            words = _encoded(display, used, _PHRASE_Q)
            out.append(words)
            used = len(words) - words.rfind("\n") - 1 if "\n" in words else used + len(words)
            tokens = [f" <{address}>"]
        elif phrase:
            tokens = [f" {phrase} <{address}>"]
            if len(tokens[0]) >= _ENCODED_LINE_CHARACTERS:
                tokens = [f" {phrase}", f" <{address}>"]
        else:
            tokens = [f" {address}"]
        if number == last:
            comma = ""
        tokens[-1] += comma
        for token in tokens:
            size = len(token)
            if used + size > _ENCODED_LINE_CHARACTERS and (
                used > start or size <= _ENCODED_LINE_CHARACTERS
            ):
                out.append("\r\n")
                start = used = 0
            out.append(token)
            used += size
    out.append("\r\n")
    return "".join(out)


def _written(address: str) -> str:
    """Return the address as fields have it: with a domain of A-labels if all else is ASCII."""
    if "\r" in address or "\n" in address:
        raise ValueError("an address has a line end")
    written = in_a_labels(address)
    if not written.isascii() and written.rpartition("@")[0].isascii():
        raise ValueError("an address is malformed")  # the text is not to have the address
    return written


@lru_cache(maxsize=1024)
def _phrase(display: str) -> str | None:
    """Return a display name as atoms, quoted string or one encoded word; None if it needs more.

    A quoted string is ASCII. A space that readers may drop is never in one.
    """
    if not display:
        return ""
    if len(display) <= _MAX_PLAIN_NAME_CHARACTERS and _survives(display):
        return (
            display
            if _ATOMS.fullmatch(display)
            else f'"{_NEEDS_BACKSLASH.sub(_WITH_BACKSLASH, display)}"'
        )
    words = _encoded(display, 0, _PHRASE_Q)
    return None if "\n" in words else words[1:]


def _encoded(text: str, used: int, table: list[str]) -> str:
    """Return a text as encoded words, each after a space or a fold (RFC 2047, section 2).

    `used` octets of the line are there already; `table` has the forms of q. No word splits a
    character. All are q, or all b: the shorter ones.
    """
    octets = text.encode()
    quoted = "".join(map(table.__getitem__, octets))
    free = (
        min(_MAX_ENCODED_WORD_CHARACTERS, _ENCODED_LINE_CHARACTERS - 1 - used)
        - _ENCODED_WORD_FRAME_CHARACTERS
    )
    out = []
    if free < _MAX_ENCODED_CHARACTER_OCTETS:
        out.append("\r\n")
        free = _MAX_ENCODED_WORD_CHARACTERS - _ENCODED_WORD_FRAME_CHARACTERS
    quotes = len(quoted) <= (len(octets) + 2) // 3 * 4
    start, end = 0, len(quoted) if quotes else len(octets)
    while True:
        if quotes:
            stop = _quoted_stop(quoted, start + free)
            out.append(f" =?utf-8?q?{quoted[start:stop]}?=")
        else:
            stop = _octet_stop(octets, start + free // 4 * 3)
            word = b2a_base64(octets[start:stop], newline=False).decode("ascii")
            out.append(f" =?utf-8?b?{word}?=")
        start = stop
        if start >= end:
            return "".join(out)
        out.append("\r\n")
        free = _MAX_ENCODED_WORD_CHARACTERS - _ENCODED_WORD_FRAME_CHARACTERS


def _quoted_stop(quoted: str, stop: int) -> int:
    """Return the last end of a character up to `stop`; `=` is only in escapes."""
    if stop >= len(quoted):
        return len(quoted)
    if quoted[stop - 1] == "=":
        stop -= 1
    elif quoted[stop - 2] == "=":
        stop -= 2
    while quoted[stop] == "=" and quoted[stop + 1] in _CONTINUATION_DIGITS:
        stop -= 3
    return stop


def _octet_stop(octets: bytes, stop: int) -> int:
    """Return the last end of a character up to `stop`."""
    if stop >= len(octets):
        return len(octets)
    while octets[stop] & 0xC0 == 0x80:
        stop -= 1
    return stop
