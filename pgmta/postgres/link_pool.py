"""Several links of one kind, of which each statement takes a free one."""

from __future__ import annotations

import asyncio
from typing import Any

from pgmta.errors import StoreUnavailable
from pgmta.postgres.link import Link
from pgmta.postgres.resources import Resources

_SETTINGS = {"statement_timeout": "5s", "lock_timeout": "3s"}
_QUESTION_TIMEOUT_S = 8.0  # for a connection and its statement


class LinkPool:
    """Runs statements over up to `connections` connections, which are made when needed."""

    def __init__(self, resources: Resources, name: str, connections: int) -> None:
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for number in reversed(range(connections)):
            self._free.put_nowait(resources.link(f"{name} {number}", _SETTINGS))

    async def run(self, query: bytes, fields: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement, for at most 8 s. Raises StoreUnavailable, psycopg.Error."""
        try:
            async with asyncio.timeout(_QUESTION_TIMEOUT_S):
                link = await self._free.get()
                try:
                    return await link.run(query, fields)
                finally:
                    self._free.put_nowait(link)
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {_QUESTION_TIMEOUT_S:g} s") from None
