"""The places of requests: how many run at once, so that slow endpoints leave room for others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

MAX_REQUESTS = 100
"""Under way at once, to endpoints of tenants and keys."""
MAX_FAILING_REQUESTS = 50
"""Of these, to endpoints whose last one failed."""
MAX_REQUESTS_OF_CUSTOMER = 10
"""Of these, to endpoints of one tenant or key; and as many to those of them that fail."""


class Slots:
    """The places of a process."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(MAX_REQUESTS)
        self._failing = asyncio.Semaphore(MAX_FAILING_REQUESTS)
        self._of_customer: defaultdict[tuple[str, bool], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_REQUESTS_OF_CUSTOMER)
        )

    @asynccontextmanager
    async def take(self, customer: str | None, failing: bool) -> AsyncIterator[None]:
        """Wait for a place; `failing` says whether the endpoint's last request failed.

        Endpoints without a customer are those of operators, and wait for nobody: there are at most
        100, with one request each.

        The place among all comes last: whoever waits for another one does not hold it.
        """
        if customer is None:
            yield
            return
        async with (
            self._of_customer[customer, failing],
            self._failing if failing else nullcontext(),
            self._all,
        ):
            yield
