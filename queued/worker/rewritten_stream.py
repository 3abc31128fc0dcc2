"""Content with a rewritten header, while it streams."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence

from pgmta.header import header_known
from queued.delivery.rewrite import Rewriting


class RewrittenStream:
    """Iterates over the parts of content, of which the first has the rewritten header.

    At most the first MB is kept until the end of the header is seen. `warn` gets the problems of
    the first iteration.
    """

    def __init__(
        self,
        content: AsyncIterable[bytes],
        rewriting: Rewriting,
        warn: Callable[[Sequence[str]], None],
    ) -> None:
        self.same = getattr(content, "same", content), id(rewriting)
        """Equal for the content of the same message with the same rewriting."""
        self._content = content
        self._rewriting = rewriting
        self._warn: Callable[[Sequence[str]], None] | None = warn

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises DeliveryError, as the content does."""
        first: bytes | None = b""
        async for part in self._content:
            if first is None:
                yield part
                continue
            first += part
            if header_known(first):
                yield self._rewritten(first)
                first = None
        if first:
            yield self._rewritten(first)

    def _rewritten(self, content: bytes) -> bytes:
        found = self._rewriting.content(content)
        if self._warn:
            self._warn(found.problems)
        self._warn = None
        return found.content
