"""A message on its way from claimed rows to envelopes."""

from __future__ import annotations

from collections.abc import AsyncIterable
from datetime import datetime
from typing import NamedTuple

from pgmta.model import Item, Message
from queued.delivery.transport.destination import Destination
from queued.rewriting.rewrite import Rewriting


class Outgoing(NamedTuple):
    """A message for rows with one destination and one reverse-path. Stages make another of it.

    `content` follows `trace`. Content that is not bytes streams anew each time it is iterated. It
    is equal to content with the same octets. `size` is the octets of content, as far as they are
    known. `utf8` says whether an address needs SMTPUTF8, and `header_utf8` whether the header may
    need it. The attempt counts from `started`. `labels` are those of the rows, if any mail has
    labels. Rows in `reserved` slots are handed back if their destination has its share of these.
    `rewriting` is that of the route.
    """

    items: list[Item]
    message: Message
    destination: Destination
    sender: str
    trace: bytes
    content: bytes | AsyncIterable[bytes]
    size: int
    utf8: bool
    header_utf8: bool
    started: datetime
    deadline: datetime | None = None
    labels: set[str] | None = None
    reserved: bool = False
    rewriting: Rewriting | None = None

    @property
    def names(self) -> set[str]:
        """The names by which claims can leave out such mail: its labels, else its domains."""
        return self.labels or {item.domain for item in self.items}

    @property
    def room(self) -> int:
        """The octets that the content takes from the worker's memory."""
        return len(self.content) if isinstance(self.content, bytes) else 0
