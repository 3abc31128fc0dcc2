"""Content that did not come with its claim, read from the store while it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pgmta.errors import DeliveryError, Stage, StoreUnavailable
from pgmta.model import PART_SIZE
from pgmta.store.queue.contents import Contents

_GONE = "5.3.0 its content is not in the database"


@dataclass(frozen=True, slots=True)
class StoredContent:
    """Iterates over the parts of a message's content."""

    message_id: int
    size: int
    chunks: int
    contents: Contents = field(compare=False, repr=False)
    urgent: bool = field(compare=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError if content is missing or can't be read."""
        chunks = self.chunks
        # chunks of earlier versions are larger
        step = max(1, PART_SIZE * chunks // max(1, self.size))
        try:
            if chunks < 0:  # else an empty message would go out
                raise DeliveryError(_GONE, Stage.CONTENT, permanent=True)
            for first in range(0, chunks or 1, step):
                if chunks:
                    number = min(step, chunks - first)
                    part = await self.contents.chunks(self.message_id, first, number, self.urgent)
                else:
                    part = await self.contents.body(self.message_id)
                if part is None:
                    raise DeliveryError(_GONE, Stage.CONTENT, permanent=True)
                yield part
        except StoreUnavailable as error:
            raise DeliveryError(f"content can't be read: {error}", Stage.CONTENT) from None
