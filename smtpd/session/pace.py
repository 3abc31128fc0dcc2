"""The time that a client takes for EHLO, for a transaction and for content."""

from __future__ import annotations

import math

from smtpd.commands.commands import Commands
from smtpd.config import Limits
from smtpd.protocol import replies

_WINDOW = 180.0  # seconds for which a sender of content may pause (RFC 5321, section 4.5.3.2.5)
_LOOKS = 4  # looks in the shortest time


class Pace:
    """Judges a client by looks at its session, so that no command and no octet costs anything.

    A limit is noticed at the next look, at most `interval` seconds late.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._window = min(_WINDOW, limits.timeout)
        self.interval = min(limits.transaction_time, limits.data_time, self._window) / _LOOKS
        """Seconds between two looks."""
        self.hello_deadline = now + limits.hello_time
        """When the client must have said EHLO, by the clock of the looks."""
        self._transaction: object | None = None  # the last one seen, and when at first
        self._began = now
        self._content: tuple[float, int] | None = None  # when the window began, and its octets

    def look(self, commands: Commands, size: int | None, now: float, *, waiting: bool) -> str:
        """Return the reply to a client that is too slow, or ''.

        `size` is that of the content under way, None without one. `waiting` says that smtpd waits
        for the client. Otherwise smtpd has not yet done all that the client has sent, and a new
        window begins.
        """
        if commands.session.host_name:
            self.hello_deadline = math.inf
        if now >= self.hello_deadline:
            return replies.TIMEOUT
        transaction = commands.transaction
        if transaction is not self._transaction:
            self._transaction, self._began, self._content = transaction, now, None
        elif transaction and now >= self._began + self._limits.transaction_time:
            return replies.TRANSACTION_TIMEOUT
        if size is None or not self._content or not waiting:
            self._content = None if size is None else (now, size)
            return ""
        since, before = self._content
        if now >= since + self._window:
            if size - before < self._limits.data_rate * (now - since):
                return replies.DATA_TOO_SLOW
            self._content = (now, size)
        return ""
