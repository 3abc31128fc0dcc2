"""A message on its way from claimed rows to envelopes, and its content in the database."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pgmta.compose.template import Template
from pgmta.errors import DeliveryError, Stage, StoreUnavailable
from pgmta.model import CHUNK_OCTETS, PART_OCTETS, Item, Message
from pgmta.store.queue.contents import Contents
from queued.delivery.transport.begin_time import BeginTime
from queued.routing.routes import Routed


class Outgoing(NamedTuple):
    """A message for rows with one destination and one reverse-path. Stages make another of it.

    `content` follows `trace`. Content that is not bytes streams anew each time it is iterated. It
    is equal to content with the same octets. `size` is the octets of content, as far as they are
    known. `utf8` says whether an address needs SMTPUTF8, and `header_utf8` whether the header may
    need it. The attempt counts from `started`. `labels` are those of the rows, if any mail has
    labels. Rows in `reserved` slots are handed back if their destination has its share of these.
    `begin` is the time of mail that has one, and `template` that of which the content is composed.
    """

    items: list[Item]
    message: Message
    routed: Routed
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
    begin: BeginTime | None = None
    template: Template | None = None

    @property
    def names(self) -> set[str]:
        """The names by which claims can leave out such mail: its labels, else its domains."""
        return self.labels or {item.domain for item in self.items}

    @property
    def content_octets(self) -> int:
        """The octets that the content takes from the worker's memory."""
        return len(self.content) if isinstance(self.content, bytes) else 0


_CONTENT_IS_GONE = "5.3.0 its content is not in the database"


@dataclass(frozen=True, slots=True)
class StoredContent:
    """Iterates over the parts of a message's content."""

    message_id: int
    chunks: int
    contents: Contents = field(compare=False, repr=False)
    urgent: bool = field(compare=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError if content is missing or can't be read."""
        chunks = self.chunks
        step = PART_OCTETS // CHUNK_OCTETS
        try:
            if chunks < 0:  # otherwise an empty message would go out
                raise DeliveryError(_CONTENT_IS_GONE, Stage.CONTENT, permanent=True)
            for first in range(0, chunks or 1, step):
                if chunks:
                    number = min(step, chunks - first)
                    part = await self.contents.chunks(self.message_id, first, number, self.urgent)
                else:
                    part = await self.contents.body(self.message_id)
                if part is None:
                    raise DeliveryError(_CONTENT_IS_GONE, Stage.CONTENT, permanent=True)
                yield part
        except StoreUnavailable as error:
            raise DeliveryError(f"content can't be read: {error}", Stage.CONTENT) from None
