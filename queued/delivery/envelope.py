"""The content and the recipients of one SMTP transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from pgmta.model import Item


class LeaseGuard(Protocol):
    """Knows whether leases still hold."""

    def valid(self, items: list[Item]) -> bool:
        """Return whether all these rows are certainly still leased to this worker."""


@dataclass(slots=True, eq=False)
class Envelope:
    """One message for recipients that share a next hop.

    `content` is the message as received; if it is not bytes, it streams the content anew each time
    it is iterated. `trace` goes before it. The session asks `guard` right before the final dot: if
    a lease may be lost, the session drops the connection without the dot. `urgent` mail goes before
    other mail of its destination. The attempt
    counts from `started`. `labels` are those of the items, if any mail has labels.
    """

    items: list[Item]
    sender: str
    trace: bytes
    size: int
    utf8: bool
    content: bytes | AsyncIterable[bytes]
    guard: LeaseGuard = field(repr=False)
    started: datetime
    urgent: bool = False
    requiretls: bool = False  # RFC 8689
    labels: set[str] | None = None

    @property
    def domains(self) -> set[str]:
        """The names by which claims can leave out such mail: its labels, else its domains."""
        return self.labels or {item.domain for item in self.items}


def cut(waiting: deque[Envelope], rows: int) -> list[Envelope]:
    """Take rows from the end of the envelopes that wait, and return them in envelopes.

    An envelope that has to be divided gives its last rows without the content.
    """
    taken: list[Envelope] = []
    while waiting and rows > 0:
        envelope = waiting[-1]
        if len(envelope.items) <= rows:
            taken.append(waiting.pop())
        else:
            taken.append(replace(envelope, items=envelope.items[-rows:], content=b""))
            envelope.items = envelope.items[:-rows]
        rows -= len(taken[-1].items)
    return taken
