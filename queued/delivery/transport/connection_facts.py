"""The facts of a connection to a next hop, for the log of attempts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from pgmta.errors import Stage
from pgmta.model import Facts
from queued.delivery.transport.transcript import MAX_ENTRIES, Entry


@dataclass(slots=True)
class ConnectionFacts(Facts):
    """The facts of a session; `dialogue` is that of its set-up, with the hosts tried before.

    `success_kind` is the success of a recipient that the host itself does not notify the sender of:
    `relayed`, or `delivered` if it has the mailboxes. It is empty if the host knows DSN (RFC 3461).
    """

    dialogue: deque[Entry] = field(
        default_factory=lambda: deque(maxlen=MAX_ENTRIES), repr=False, compare=False
    )
    success_kind: str = "relayed"

    def count(self, stage: Stage, seconds: float) -> None:
        """Count the time of a set-up that failed in a stage, as far as no step has it yet."""
        rest = seconds - self.connect_seconds - self.greeting_seconds - self.tls_seconds
        if stage is Stage.TLS:
            self.tls_seconds += rest
        elif stage in (Stage.CONNECT, Stage.GREETING):
            self.connect_seconds += rest
        elif stage in (Stage.EHLO, Stage.HELO, Stage.LHLO):
            self.greeting_seconds += rest

    def kept(self) -> ConnectionFacts:
        """Return the facts for the later transactions of the connection: they needed no set-up."""
        return replace(
            self, dns_seconds=0.0, connect_seconds=0.0, greeting_seconds=0.0, tls_seconds=0.0
        )
