"""One message for some recipients: what a channel gets at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from pgmta.compose.template import Template
from pgmta.model import Item, Message
from queued.delivery.transport.begin_time import BeginTime


class LeaseGuard(Protocol):
    """Knows whether leases still hold."""

    def valid(self, items: list[Item]) -> bool:
        """Return whether all these rows are certainly still leased to this worker."""

    async def begin(self, items: list[Item]) -> bool:
        """Note durably that the transaction of rows with `once` begins; return whether it may."""

    async def withdraw(self, items: list[Item]) -> None:
        """Note that it has not begun after all; if that can't be noted, it counts as begun."""


@dataclass(slots=True, eq=False)
class Envelope:
    """One message for recipients that share a next hop.

    `message` is the stored one, `content` what goes out after `trace`. Content that is not bytes
    streams anew each time it is iterated. `utf8` says whether the host has to know SMTPUTF8; None:
    `look_at_header` finds it. The channel asks `guard` right before the place can have
    the message. If a lease may be lost, the channel ends instead. `urgent` mail goes before other
    mail of its destination. The attempt counts from `started`. `content_octets` are those that the
    content takes from the worker's memory. A `bare` one goes without options, because a place
    refused them. `labels` are those of the items, if any mail has labels. No transaction begins
    after the `deadline`, a time of the monotonic clock. An envelope with a rate begins at `begin`,
    with one item. `template` is that of which the content was composed, if it was of one.
    """

    items: list[Item]
    message: Message
    sender: str
    trace: bytes
    size: int
    utf8: bool | None
    content: bytes | AsyncIterable[bytes]
    guard: LeaseGuard = field(repr=False)
    started: datetime
    urgent: bool = False
    content_octets: int = 0
    bare: bool = False
    labels: set[str] | None = None
    deadline: float | None = None
    begin: BeginTime | None = None
    template: Template | None = None

    @property
    def domains(self) -> set[str]:
        """The names by which claims can leave out such mail: its labels, else its domains."""
        return self.labels or {item.domain for item in self.items}

    @property
    def earlier(self) -> int:
        """The number of attempts before this one: each of them begins at other hosts."""
        return max(item.attempts for item in self.items) - 1

    @property
    def late(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline is not None and self.deadline <= time.monotonic()

    async def look_at_header(self) -> None:
        """Find whether the header needs SMTPUTF8. Raises DeliveryError, as the content."""
        self.utf8, seen = not self.trace.isascii(), b""
        if self.utf8 or isinstance(self.content, bytes):
            return
        async for part in self.content:
            seen = seen[-3:] + part
            end = seen.find(b"\r\n\r\n")
            if not (seen if end < 0 else seen[:end]).isascii():
                self.utf8 = True
                return
            if end >= 0:
                return

    def split(self, indices: list[int]) -> Envelope:
        """Move the items with these indices into a new envelope, and return it."""
        moved = set(indices)
        rest = replace(self, items=[self.items[index] for index in indices])
        self.content_octets = 0  # the last part frees it
        self.items = [item for index, item in enumerate(self.items) if index not in moved]
        return rest
