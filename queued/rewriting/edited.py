"""Content that editors make of other content and the metadata of a row (pure).

An editor makes the same content from the same octets and metadata, at each attempt and in each
process. So `queuectl show` and DSNs have the content that next hops get.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

from pgmta.mail.metadata import values_of

EDITED = 1 << 20
"""Octets of content that editors get; those behind them stay as they are."""

type Editor = Callable[[bytes, dict[str, Any]], bytes]

EDITORS: list[Editor] = []
"""They get the start of content, and the metadata of a row; in order.

Numbers in metadata are texts. An editor returns the octets that go in place of the start: the same
if it is not for them. It raises ValueError if metadata are wrong. A new one is a file, and its name
here.
"""


def edited(content: bytes, metadata: str | None) -> bytes:
    """Return content as it goes to a row with these metadata, as JSON. Raises ValueError."""
    start = content[:EDITED]
    values = values_of(metadata or "{}")
    made = start
    for editor in EDITORS:
        made = editor(made, values)
    return content if made == start else made + content[EDITED:]


def edited_or_stored(content: bytes, metadata: str | None) -> bytes:
    """Return content as it goes to a row; as it is stored if metadata are wrong."""
    try:
        return edited(content, metadata) if EDITORS else content
    except ValueError:
        return content


async def edited_parts(
    parts: AsyncIterable[bytes], edit: Callable[[bytes], bytes]
) -> AsyncIterator[bytes]:
    """Yield the parts of edited content; its start is kept until it is complete."""
    start: bytes | None = b""
    async for part in parts:
        if start is None:
            yield part
            continue
        start += part
        if len(start) >= EDITED:
            yield edit(start)
            start = None
    if start is not None:
        yield edit(start)
