"""Content that is composed from stored content and the metadata of a row (pure).

A composer makes the same content from the same octets and metadata, at each attempt and in each
process. So `queuectl show` and DSNs have the content that next hops get.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

from pgmta.mail.metadata import values_of

COMPOSED = 1 << 20
"""Octets of stored content that composers get; those behind them stay as they are."""

type Composer = Callable[[bytes, dict[str, Any]], bytes]

COMPOSERS: list[Composer] = []
"""They get the start of content, and the metadata of a row; in order.

Numbers in metadata are texts. A composer returns the octets that go in place of the start: the same
if it is not for them. It raises ValueError if metadata are wrong. A new one is a file, and its name
here.
"""


def composed(content: bytes, metadata: str | None) -> bytes:
    """Return content as it goes to a row with these metadata, as JSON. Raises ValueError."""
    start = content[:COMPOSED]
    values = values_of(metadata or "{}")
    made = start
    for composer in COMPOSERS:
        made = composer(made, values)
    return content if made == start else made + content[COMPOSED:]


def composed_or_stored(content: bytes, metadata: str | None) -> bytes:
    """Return content as it goes to a row; as it is stored if metadata are wrong."""
    try:
        return composed(content, metadata) if COMPOSERS else content
    except ValueError:
        return content


async def composed_parts(
    parts: AsyncIterable[bytes], compose: Callable[[bytes], bytes]
) -> AsyncIterator[bytes]:
    """Yield the parts of composed content; its start is kept until it is complete."""
    start: bytes | None = b""
    async for part in parts:
        if start is None:
            yield part
            continue
        start += part
        if len(start) >= COMPOSED:
            yield compose(start)
            start = None
    if start is not None:
        yield compose(start)
