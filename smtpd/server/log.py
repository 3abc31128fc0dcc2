"""Lines in the log that clients cause: accepted messages, refusals, and events that are many."""

from __future__ import annotations

import re
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Mapping, Sequence
from typing import Any

from pgmta.intake.content import Content
from pgmta.logs import Lines, get
from smtpd.config.smtpd_config import SmtpdLog
from smtpd.protocol import replies

_WRITE_INTERVAL_S = 0.05  # a write costs more than ten lines
# a text that needs no quotes or escapes in any form of the log
_IS_PLAIN = re.compile(r"[!#-&(-<>-\[\]-~]*").fullmatch
_MAX_REFUSALS_PER_S = 20  # clients can cause as many replies as they like
# These follow from another refusal, or have the line `login failed`.
_LOGGED_OTHERWISE = frozenset((replies.AUTH_FAILED, replies.NO_MAIL, replies.NO_RCPT))
_NOTICE_INTERVAL_S = 60.0

log, session_log = get("smtpd"), get("session")


class AcceptedLog:
    """Makes the lines of accepted messages once their group is committed, and writes many at once.

    structlog takes 20 µs per line. A line is at most 50 ms late, and at once if there are few.
    """

    def __init__(self, settings: SmtpdLog, loop: AbstractEventLoop) -> None:
        self._lines = Lines(settings, "accepted", daemon="smtpd", part="session")
        self._loop = loop
        self._waiting: list[str] = []
        self._timer: TimerHandle | None = None  # writes the lines that wait
        self._written = 0.0  # time of the last write

    def template(self, client: str, user: str, listener: str, session: str) -> Sequence[str]:
        """Return the text around the values of a message; it is the same for all of a session."""
        named = {"user": user} if user else {}
        return self._lines.gaps(
            ("id", "recipients", "size"), ("sender",),
            client=client, **named, listener=listener, session=session,
        )  # fmt: skip

    def note(self, group: Sequence[Content]) -> None:
        """Take a group that is committed; its messages without a template have no line."""
        lines, head = self._waiting, self._lines.head()
        for content in group:
            message = content.message
            if not message or not content.log_template:
                continue
            sender = message.sender
            if not _IS_PLAIN(sender):
                sender = self._lines.value(sender)
            a, b, c, d, e = content.log_template
            number, size, recipients = message.id, message.size, len(message.recipients)
            lines.append(f"{head}{a}{number}{b}{recipients}{c}{size}{d}{sender}{e}")
        if lines and not self._timer:
            wait = self._written + _WRITE_INTERVAL_S - self._loop.time()
            if wait <= 0:
                self.write_line()
            else:
                self._timer = self._loop.call_later(wait, self.write_line)

    def write_line(self) -> None:
        """Write the lines that wait."""
        lines, self._waiting, self._timer = self._waiting, [], None
        self._written = self._loop.time()
        if lines:
            self._lines.write(lines)


class RefusalLog:
    """Logs refusals of one process, at most some per second, and the number of the others."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0  # written in the present second
        self._left_out = 0

    def note(self, reply: str, who: Mapping[str, str], *, address: str, user: str) -> None:
        """Log a reply 4xx or 5xx with the client, the path of the last MAIL or RCPT, the user."""
        if reply in _LOGGED_OTHERWISE:
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > _MAX_REFUSALS_PER_S:
            self._left_out += 1
            return
        values: dict[str, object] = {"address": address} if address else {}
        if user:
            values["user"] = user
        if self._left_out:
            values["left_out"], self._left_out = self._left_out, 0
        session_log.info("refused", **who, reply=reply, **values)


class Notice:
    """Logs the first event, and once per minute how many there were."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._count = 0  # notices since the last line
        self._logged = -_NOTICE_INTERVAL_S

    def note(self, **values: Any) -> None:
        """Count an event; its values are logged if it is the first or a minute has passed."""
        self._count += 1
        now = time.monotonic()
        if now >= self._logged + _NOTICE_INTERVAL_S:
            log.warning(self._line, count=self._count, **values)
            self._count, self._logged = 0, now
