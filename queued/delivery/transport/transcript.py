"""The dialogue with a next hop: kept by references, and written as text when it is needed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from pgmta.mail.text import printable

SENT, RECEIVED, CONTENT, NOTE = ">", "<", "content", "#"
"""The kinds of an entry: octets of commands or replies, a number of octets of content, a text."""

type Entry = tuple[float, str, bytes | int | str]
"""The time by the monotonic clock, the kind, and the octets, number or text."""

type Said = tuple[Iterable[Entry], Iterable[Entry]]
"""The dialogues of a connection's set-up and of a transaction."""

MAX_ENTRIES = 256
"""Older entries of a dialogue are forgotten, whatever a peer sends."""

MAX_TRANSCRIPT_OCTETS = 16384

_FAILED_CONNECTION_NOTES = 2  # more entries mean that the peer said something
_MAX_LINE_CHARACTERS = 500
_START_OCTETS = 4096  # of a transcript that is too long; the middle is left out
# No other line may have a part of a secret in it. Data of AUTH has neither blank nor colon.
_HARMLESS_COMMAND = re.compile(
    rb"(?:EHLO|HELO|LHLO) .*|(?:MAIL FROM|RCPT TO):.*|DATA|RSET|NOOP|QUIT|STARTTLS|\.", re.DOTALL
)
_AUTH = re.compile(rb"AUTH [A-Z0-9_-]{1,20}")
_STATUS = re.compile(rb"[2-5]\d\d(?:[ -][245]\.\d{1,3}\.\d{1,3}\b)?")
_LEFT_OUT = "(left out)"


def transcript(said: Said) -> str:
    """Return the text: a line for each line said, with its time.

    It has at most MAX_TRANSCRIPT_OCTETS octets of UTF-8.

    `<` marks the lines of the next hop, `>` ours, `#` notes. Content and AUTH data are left out.
    The text is empty if a single connection failed: the reason has it all.
    """
    setup, transaction = said
    entries = [*setup, *transaction]
    more = len(entries) > _FAILED_CONNECTION_NOTES or any(kind != NOTE for _, kind, _ in entries)
    if not more:
        return ""
    # with a host that sends octet by octet, an AUTH whose secret it repeats may be forgotten
    return _shortened([*_lines(entries, private=len([*setup]) >= MAX_ENTRIES)])


def _lines(said: list[Entry], *, private: bool) -> Iterator[str]:
    ahead = time.time() - time.monotonic()
    yield f"# {datetime.fromtimestamp(said[0][0] + ahead, UTC):%Y-%m-%d}, UTC"
    partial = b""
    for moment, kind, what in said:
        lines: list[str] = []
        if isinstance(what, int):
            lines = [f"content: {what} octets"]
        elif isinstance(what, str):
            lines = [printable(what)]
        elif kind == SENT:
            sent = what.removesuffix(b"\r\n").split(b"\r\n")
            lines = [_sent(line) for line in sent]
            private = not _HARMLESS_COMMAND.fullmatch(sent[-1])  # the host may repeat what it got
        else:
            *whole, partial = (partial + what).split(b"\n")
            lines = [_received(line, private) for line in whole]
        at = datetime.fromtimestamp(moment + ahead, UTC).strftime("%H:%M:%S.%f")[:-3]
        mark = SENT if kind == CONTENT else kind
        for line in lines:
            if len(line) > _MAX_LINE_CHARACTERS:
                line = line[:_MAX_LINE_CHARACTERS] + "…"
            yield f"{at} {mark} {line}"
    if partial:
        rest = _received(partial, private)[:_MAX_LINE_CHARACTERS]
        yield f"# after that, without an end of line: {rest}"


def _sent(line: bytes) -> str:
    if _HARMLESS_COMMAND.fullmatch(line):
        return printable(line.decode("utf-8", "replace"))
    if mechanism := _AUTH.match(line):
        return f"{mechanism[0].decode()} {_LEFT_OUT}"
    return _LEFT_OUT


def _received(line: bytes, private: bool) -> str:
    line = line.removesuffix(b"\r")
    if line.startswith(b"334"):  # a challenge (RFC 4954)
        return f"334 {_LEFT_OUT}"
    if private:
        status = _STATUS.match(line)
        return f"{status[0].decode()} {_LEFT_OUT}" if status else _LEFT_OUT
    return printable(line.decode("utf-8", "replace"))


def _shortened(lines: list[str]) -> str:
    """Return the lines as one text; if they are too long, without those in the middle."""
    sizes = [len(line.encode()) + 1 for line in lines]
    if sum(sizes) <= MAX_TRANSCRIPT_OCTETS:
        return "".join(f"{line}\n" for line in lines)
    first, size = 0, 0
    while size + sizes[first] <= _START_OCTETS:
        size += sizes[first]
        first += 1
    last = len(lines)
    size += 40  # octets of the note about what is left out
    while size + sizes[last - 1] <= MAX_TRANSCRIPT_OCTETS:
        last -= 1
        size += sizes[last]
    note = f"# {last - first} lines are left out"
    return "".join(f"{line}\n" for line in [*lines[:first], note, *lines[last:]])
