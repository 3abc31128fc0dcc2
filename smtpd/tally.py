"""The errors and the useless commands of a session."""

from __future__ import annotations

from enum import Enum, auto

from smtpd.config import Limits

_UNKNOWN = 5  # unknown commands until smtpd hangs up

HTTP = frozenset(b"GET POST PUT HEAD DELETE OPTIONS PATCH TRACE CONNECT".split())
"""Methods of a browser, perhaps for a hostile page: its body would be taken for commands."""


class Consequence(Enum):
    """The result of an error of the client."""

    GO_ON = auto()
    DELAY = auto()  # the next command waits for a while
    END = auto()  # smtpd hangs up


class Tally:
    """Counts the errors of a session, and commands that carry no mail, since its last mail."""

    __slots__ = ("_limits", "_since", "errors", "junk_level", "unknown_commands")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.errors = 0
        """Replies 5xx; accepted mail sets all three counts to 0."""
        self.junk_level = 0.0
        """Commands that carry no mail, less the seconds that have passed."""
        self._since = 0.0
        self.unknown_commands = 0

    def error(self) -> Consequence:
        """Count a 5xx reply. After half of `limits.errors` the client is slowed down."""
        self.errors += 1
        if self.errors >= self._limits.errors:
            return Consequence.END
        return Consequence.DELAY if self.errors > self._limits.errors // 2 else Consequence.GO_ON

    def junk(self, now: float) -> Consequence:
        """Count a command that carries no mail, at a time of the event loop in seconds."""
        self.junk_level = max(0.0, self.junk_level - (now - self._since)) + 1
        self._since = now
        return self.error() if self.junk_level > self._limits.junk else Consequence.GO_ON

    def unknown(self) -> Consequence:
        """Count an unknown command; its reply counts as an error besides."""
        self.unknown_commands += 1
        return Consequence.END if self.unknown_commands >= _UNKNOWN else Consequence.GO_ON
