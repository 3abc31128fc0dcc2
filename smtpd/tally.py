"""What a session does wrong, or for nothing."""

from __future__ import annotations

from enum import Enum, auto

from smtpd.config import Limits

_UNKNOWN = 5  # unknown commands until we hang up

HTTP = frozenset(b"GET POST PUT HEAD DELETE OPTIONS PATCH TRACE CONNECT".split())
"""What a browser sends, perhaps for a hostile page: its body would be taken for commands."""


class Verdict(Enum):
    """What follows from an error."""

    GO_ON = auto()
    DELAY = auto()  # the next command waits for a while
    END = auto()  # we hang up


class Tally:
    """Counts the errors of a session, and commands that carry no mail, since its last mail."""

    __slots__ = ("_errors", "_junk", "_limits", "_since", "_unknown")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._errors = 0
        self._junk = 0.0  # commands that carry no mail, less the seconds that have passed
        self._since = 0.0
        self._unknown = 0

    def error(self) -> Verdict:
        """Count a 5xx reply. After half of `limits.errors` the client is slowed down."""
        self._errors += 1
        if self._errors >= self._limits.errors:
            return Verdict.END
        return Verdict.DELAY if self._errors > self._limits.errors // 2 else Verdict.GO_ON

    def junk(self, now: float) -> Verdict:
        """Count a command that carries no mail, at a time of the event loop in seconds."""
        self._junk = max(0.0, self._junk - (now - self._since)) + 1
        self._since = now
        return self.error() if self._junk > self._limits.junk else Verdict.GO_ON

    def unknown(self) -> Verdict:
        """Count an unknown command; its reply counts as an error besides."""
        self._unknown += 1
        return Verdict.END if self._unknown >= _UNKNOWN else Verdict.GO_ON

    def mail(self) -> None:
        """Mail was accepted: all is counted anew."""
        self._unknown = 0
        self._errors = 0
        self._junk = 0.0
