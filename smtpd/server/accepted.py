"""The line in the log for each message that was taken."""

from __future__ import annotations

import re
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Sequence

from pgmta.intake.content import Content
from pgmta.logs import Lines
from smtpd.config.file import SmtpdLog

_EVERY = 0.05  # seconds between two writes, because a write costs more than ten lines
_PLAIN = re.compile(r"[!#-&(-<>-\[\]-~]*").fullmatch  # a text that no form of the log changes


class AcceptedLog:
    """Makes the lines of a group once it is committed, and writes many at once.

    structlog takes 20 µs per line. A line is at most 50 ms late, and at once if there are few.
    """

    def __init__(self, log: SmtpdLog, loop: AbstractEventLoop) -> None:
        self._lines = Lines(log, "accepted", daemon="smtpd", part="session")
        self._loop = loop
        self._waiting: list[str] = []
        self._timer: TimerHandle | None = None  # for these
        self._written = 0.0  # when the last write was

    def gaps(self, client: str, user: str, listener: str, session: str) -> Sequence[str]:
        """Return the text around the values of a message; it is the same for all of a session."""
        named = {"user": user} if user else {}
        return self._lines.gaps(
            ("id", "recipients", "size"), ("sender",),
            client=client, **named, listener=listener, session=session,
        )  # fmt: skip

    def note(self, group: Sequence[Content]) -> None:
        """Take a group that is committed; its messages without gaps have no line."""
        lines, head = self._waiting, self._lines.head()
        for content in group:
            message = content.message
            if not message or not content.gaps:
                continue
            sender = message.sender
            if not _PLAIN(sender):
                sender = self._lines.value(sender)
            a, b, c, d, e = content.gaps
            number, size, recipients = message.id, message.size, len(message.recipients)
            lines.append(f"{head}{a}{number}{b}{recipients}{c}{size}{d}{sender}{e}")
        if lines and not self._timer:
            wait = self._written + _EVERY - self._loop.time()
            if wait <= 0:
                self.write()
            else:
                self._timer = self._loop.call_later(wait, self.write)

    def write(self) -> None:
        """Write the lines that wait."""
        lines, self._waiting, self._timer = self._waiting, [], None
        self._written = self._loop.time()
        if lines:
            self._lines.write(lines)
