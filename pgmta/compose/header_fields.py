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

_LINE = 78
_ENCODED_LINE = 76
_LONGEST = 998
_WORD = 75  # octets of an encoded word
_AROUND = len("=?utf-8?q??=")
_ROOM = 12  # octets of the longest character as q and as b, so a word has room for one
_PLAIN = 60  # characters of a display name that needs no folding
_MARK = "=?"  # a text that has it is encoded, because a reader would look for an encoded word
_TOKEN = re.compile(" *[^ ]+")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_SPECIAL = re.compile(r'(["\\])')
_ESCAPED = r"\\\1"
_ALPHANUMERIC = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_IN_PHRASE = _ALPHANUMERIC + b"!*+-/"  # as they are in a word of a phrase (RFC 2047, section 5)
_IN_TEXT = _IN_PHRASE + b"\"#$%&'(),.:;<>@[\\]^`{|}~"


def _q_table(literal: bytes) -> list[str]:
    """Return the form of each octet in q (RFC 2047, section 4.2)."""
    table = [chr(octet) if octet in literal else f"={octet:02X}" for octet in range(256)]
    table[ord(" ")] = "_"
    return table


_PHRASE_Q, _TEXT_Q = _q_table(_IN_PHRASE), _q_table(_IN_TEXT)
_CONTINUED = frozenset("89AB")  # first digit of an octet that is not a character's first

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
    if len(name) + len(text) + 2 <= _LINE:
        return f"{name}: {text}\r\n"
    words = text.split(" ")
    if len(name) + len(words[0]) + 2 > _LONGEST or max(map(len, words)) >= _LONGEST:
        return f"{name}:{_encoded(text, len(name) + 1, _TEXT_Q)}\r\n"
    return _folded(name, text)


def _survives(text: str) -> bool:
    """Return whether an unstructured text may go as it is: readers drop or join some spaces."""
    return (
        text.isascii()
        and text.isprintable()
        and _MARK not in text
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
    if len(name) + len(value) + 2 <= _LINE:
        return f"{name}: {value}\r\n"
    out = [name, ":"]
    start = used = len(name) + 1
    for token in _TOKEN.findall(" " + value):
        size = len(token)
        # not behind the name, if it can be helped: some readers take that space into the value
        if used + size > _LINE and (used > start or used + size > _LONGEST):
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
            if len(tokens[0]) >= _ENCODED_LINE:
                tokens = [f" {phrase}", f" <{address}>"]
        else:
            tokens = [f" {address}"]
        if number == last:
            comma = ""
        tokens[-1] += comma
        for token in tokens:
            size = len(token)
            if used + size > _ENCODED_LINE and (used > start or size <= _ENCODED_LINE):
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
        raise ValueError("an address is malformed")  # without the address
    return written


@lru_cache(maxsize=1024)
def _phrase(display: str) -> str | None:
    """Return a display name as atoms, quoted string or one encoded word; None if it needs more.

    A quoted string is ASCII. A space that readers may drop is never in one.
    """
    if not display:
        return ""
    if len(display) <= _PLAIN and _survives(display):
        return display if _ATOMS.fullmatch(display) else f'"{_SPECIAL.sub(_ESCAPED, display)}"'
    words = _encoded(display, 0, _PHRASE_Q)
    return None if "\n" in words else words[1:]


def _encoded(text: str, used: int, table: list[str]) -> str:
    """Return a text as encoded words, each after a space or a fold (RFC 2047, section 2).

    `used` octets of the line are there already; `table` has the forms of q. No word splits a
    character. All are q, or all b: the shorter ones.
    """
    octets = text.encode()
    quoted = "".join(map(table.__getitem__, octets))
    room = min(_WORD, _ENCODED_LINE - 1 - used) - _AROUND
    out = []
    if room < _ROOM:
        out.append("\r\n")
        room = _WORD - _AROUND
    quotes = len(quoted) <= (len(octets) + 2) // 3 * 4
    start, end = 0, len(quoted) if quotes else len(octets)
    while True:
        if quotes:
            stop = _quoted_stop(quoted, start + room)
            out.append(f" =?utf-8?q?{quoted[start:stop]}?=")
        else:
            stop = _octet_stop(octets, start + room // 4 * 3)
            word = b2a_base64(octets[start:stop], newline=False).decode("ascii")
            out.append(f" =?utf-8?b?{word}?=")
        start = stop
        if start >= end:
            return "".join(out)
        out.append("\r\n")
        room = _WORD - _AROUND


def _quoted_stop(quoted: str, stop: int) -> int:
    """Return the last end of a character up to `stop`; `=` is only in escapes."""
    if stop >= len(quoted):
        return len(quoted)
    if quoted[stop - 1] == "=":
        stop -= 1
    elif quoted[stop - 2] == "=":
        stop -= 2
    while quoted[stop] == "=" and quoted[stop + 1] in _CONTINUED:
        stop -= 3
    return stop


def _octet_stop(octets: bytes, stop: int) -> int:
    """Return the last end of a character up to `stop`."""
    if stop >= len(octets):
        return len(octets)
    while octets[stop] & 0xC0 == 0x80:
        stop -= 1
    return stop
