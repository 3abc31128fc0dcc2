"""The mails in the sink's Maildir: their order, and the summary of each."""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pgmta.mail.text import one_line
from smtpd.sink.header_text import decode_text, decode_words

_FOLDERS = ("new", "cur")
_NAME = re.compile(r"[A-Za-z0-9][\w.,=+@%\\-]{0,250}", re.ASCII)
_NAME_TIME = re.compile(r"(\d{1,11})(?:\.M(\d{1,6})P\d+Q(\d{1,9}))?")
_HEAD_OCTETS = 64 << 10  # of a mail, from which its summary is made
_FIELD = re.compile(rb"^([!-9;-~]{1,70}):[ \t]*([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.MULTILINE)
_ENVELOPE = re.compile(rb"Return-Path: [^\n]*\n(?:Delivered-To: [^\n]*\n)*")
_SHOWN_CHARACTERS = 200  # of a field
_NAMED_RECIPIENTS = 3
_KEPT_SUMMARIES = 2000  # in memory


class Summary(NamedTuple):
    """A mail in the list. `size` is in octets."""

    name: str
    sender: str
    recipients: str
    subject: str
    time: datetime
    size: int


class KeptMails:
    """Finds mails by their names in the Maildir, which stay when a reader moves them to `cur`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._summaries: OrderedDict[str, Summary] = OrderedDict()

    def names(self) -> list[str]:
        """Return the name of each mail, the newest first."""
        found = self._found()
        return sorted(found, key=_order, reverse=True)

    def path(self, name: str) -> Path | None:
        """Return the file of a mail, or None if there is none."""
        if not _NAME.fullmatch(name):
            return None
        path = self._folder / "new" / name
        if not _is_file(path):
            path = self._found().get(name, path)
        return path if _is_file(path) else None

    def summaries(self, names: Sequence[str]) -> list[Summary]:
        """Return the summaries of mails; those that are gone are left out."""
        found = (self._summary(name) for name in names)
        return [summary for summary in found if summary]

    def clear(self) -> None:
        """Delete all mails."""
        for path in self._found().values():
            path.unlink(missing_ok=True)

    def _found(self) -> dict[str, Path]:
        found = {}
        for folder in _FOLDERS:
            with suppress(FileNotFoundError), os.scandir(self._folder / folder) as entries:
                for entry in entries:
                    name = entry.name.partition(":")[0]
                    if _NAME.fullmatch(name):
                        found[name] = Path(entry.path)
        return found

    def _summary(self, name: str) -> Summary | None:
        if summary := self._summaries.get(name):
            self._summaries.move_to_end(name)
            return summary
        if not (path := self.path(name)):
            return None
        try:
            with path.open("rb") as file:
                head, status = file.read(_HEAD_OCTETS), os.fstat(file.fileno())
        except OSError:
            return None
        summary = summarize(name, head, status.st_size, status.st_mtime)
        self._summaries[name] = summary
        if len(self._summaries) > _KEPT_SUMMARIES:
            self._summaries.popitem(last=False)
        return summary


def summarize(name: str, head: bytes, size: int, changed: float) -> Summary:
    """Make the summary of a mail from its first octets.

    Sender and recipients are those of the envelope if the header does not name a sender. `changed`
    is the time of its file, for names without one.
    """
    envelope = found[0] if (found := _ENVELOPE.match(head)) else b""
    header = re.split(rb"\r?\n\r?\n", head[len(envelope) :], maxsplit=1)[0]
    fields: dict[bytes, str] = {}
    for key, value in _FIELD.findall(header):
        fields.setdefault(key.lower(), _shown(value))
    reverse, *recipients = (line.partition(b": ")[2] for line in envelope.splitlines() or [b""])
    named = ", ".join(map(_shown, recipients[:_NAMED_RECIPIENTS])) or fields.get(b"to", "")
    left = len(recipients) - _NAMED_RECIPIENTS
    return Summary(
        name,
        fields.get(b"from") or _shown(reverse),
        f"{named} and {left} more" if left > 0 else named,
        fields.get(b"subject", ""),
        datetime.fromtimestamp(_order(name)[0] or changed).astimezone(),
        size - len(envelope),
    )


def _shown(value: bytes) -> str:
    text = one_line(decode_words(decode_text(value[: 4 * _SHOWN_CHARACTERS])))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _order(name: str) -> tuple[int, int, int, str]:
    """Return the time in a name (seconds, microseconds, number) and the name."""
    found = _NAME_TIME.match(name)
    seconds, micros, number = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    return seconds, micros, number, name


def _is_file(path: Path) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False
