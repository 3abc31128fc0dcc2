"""A command line that is too long to be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from smtpd.fairness.closing import Closing
from smtpd.protocol import replies

LINE = 1 << 16
"""Octets of a line that are kept; a longer one is skipped up to its end."""
_SKIP = 1 << 18  # octets of a line that are skipped until smtpd hangs up
_DELAY = 1.0  # seconds of a pause after each 64 KB


class Skipper(Protocol):
    """A connection, as far as it skips a line."""

    closing: Closing

    def forget(self) -> None:
        """Throw away what has been read."""

    def suspend(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine; the commands that follow wait for it."""


class LongLine:
    """Skips a line, slowly, and ends a session whose line has no end."""

    __slots__ = ("_connection", "skipped")

    def __init__(self, connection: Skipper) -> None:
        self._connection = connection
        self.skipped = 0
        """Octets of the line so far; its rest is skipped too."""

    def skip(self, octets: int) -> None:
        """Throw away what has been read, all of it octets of the line."""
        pauses = self.skipped // LINE
        self.skipped += octets
        self._connection.forget()
        if self.skipped > _SKIP:
            self._connection.closing.refuse(replies.LINE_WITHOUT_END)
        elif self.skipped // LINE > pauses:  # not for each octet, which would put off the end
            self._connection.suspend(asyncio.sleep(_DELAY))
