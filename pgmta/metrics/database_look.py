"""Whether the database answers now, for /readyz."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import psycopg

from pgmta.errors import StoreUnavailable

_MAX_ANSWER_AGE_S = 1.0  # so that more requests make no more work for the database
_ANSWER_TIMEOUT_S = 2.0


class KeptReason(ABC):
    """Keeps an answer of the database for a second, for all who ask."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()  # requests that wait for it get the same answer
        self._reason = ""
        self._until = 0.0

    async def problem(self) -> str:
        """Return why nothing can be done now; '' if it can."""
        async with self._one:
            if time.monotonic() >= self._until:
                self._reason = await self._ask()
                self._until = time.monotonic() + _MAX_ANSWER_AGE_S
            return self._reason

    @abstractmethod
    async def _ask(self) -> str:
        """Ask the database; return the reason, or ''."""


class DatabaseLook(KeptReason):
    """Asks whether the database answers. `look` raises StoreUnavailable or psycopg.Error."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._look = look

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._look()
        except (StoreUnavailable, psycopg.Error, TimeoutError) as error:
            return " ".join(str(error).split()) or "the database does not answer"
        return ""
