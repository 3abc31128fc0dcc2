"""The mail, the errors and the useless commands of a session."""

from __future__ import annotations

from enum import Enum, auto

from smtpd.config import Limits

_UNKNOWN_RECIPIENT = "550 5.1.1"  # the start of such a reply, of smtpd or of a hook
_MAX_UNKNOWN_COMMANDS = 5  # then smtpd hangs up

MAX_MESSAGES = 1000
"""After so many messages in a session MAIL gets 421."""
MAX_RECIPIENTS = 10_000
"""After so many recipients in a session MAIL gets 421."""
MAX_UNKNOWN_RECIPIENTS = 10
"""A session that names more of them gets 421."""
MAX_USELESS_COMMANDS = 100
"""Commands without mail since the last accepted mail; one more each second. More are errors."""

HTTP_METHODS = frozenset(b"GET POST PUT HEAD DELETE OPTIONS PATCH TRACE CONNECT".split())
"""A hostile page may let a browser send them, and its body would be taken for commands."""


class Consequence(Enum):
    """The result of an error of the client."""

    GO_ON = auto()
    DELAY = auto()  # the next command waits for a while
    END = auto()  # smtpd hangs up


class Tally:
    """Counts the mail of a session; and since its last mail errors and commands without mail."""

    def __init__(self, limits: Limits, *, spared: bool = False) -> None:
        self._limits = limits
        self.spared = spared
        """Whether the limits of messages, recipients and unknown recipients do not count."""
        self.messages = 0
        """Complete messages of the session."""
        self.recipients = 0
        """Recipients of these messages."""
        self.unknown_recipients = 0
        """Unknown recipients that the session has named."""
        self.errors = 0
        """Replies 5xx; accepted mail sets all three counts to 0."""
        self.junk_level = 0.0
        """Commands that carry no mail, less the seconds that have passed."""
        self._since = 0.0
        self.unknown_commands = 0

    @property
    def full(self) -> bool:
        """Whether the session has had as much mail as it may."""
        return not self.spared and (
            self.messages >= MAX_MESSAGES or self.recipients >= MAX_RECIPIENTS
        )

    def count_message(self, recipients: int, *, accepted: bool) -> None:
        """Count a complete message; an accepted one makes up for errors and useless commands."""
        self.messages += 1
        self.recipients += recipients
        if accepted:
            self.errors = self.unknown_commands = 0
            self.junk_level = 0.0

    def refusal(self, reply: str, *, login: bool) -> Consequence:
        """Count a 5xx reply. Mailing lists of known clients have some unknown recipients."""
        if reply[:9] != _UNKNOWN_RECIPIENT:
            return self.error()
        if self.spared or login:
            return Consequence.GO_ON
        self.unknown_recipients += 1
        if self.unknown_recipients > MAX_UNKNOWN_RECIPIENTS:
            return Consequence.END
        return self.error()

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
        return self.error() if self.junk_level > MAX_USELESS_COMMANDS else Consequence.GO_ON

    def unknown(self) -> Consequence:
        """Count an unknown command; its reply counts as an error besides."""
        self.unknown_commands += 1
        return (
            Consequence.END if self.unknown_commands >= _MAX_UNKNOWN_COMMANDS else Consequence.GO_ON
        )
