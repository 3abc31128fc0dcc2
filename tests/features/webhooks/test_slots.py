"""The places of requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from pgmta_features.webhooks.slots import (
    MAX_FAILING_REQUESTS,
    MAX_REQUESTS,
    MAX_REQUESTS_OF_CUSTOMER,
    Slots,
)


async def test_slow_endpoints_of_one_customer_leave_others_room() -> None:
    slots, slow = Slots(), "key:slow"
    async with AsyncExitStack() as taken, asyncio.TaskGroup() as group:
        for _ in range(MAX_REQUESTS_OF_CUSTOMER):
            await taken.enter_async_context(slots.take(slow, failing=False))
        one_more = group.create_task(_pass(slots, slow, failing=False))
        for other in None, "key:good":
            await _pass(slots, other, failing=False)
        await _pass(slots, slow, failing=True)
        assert not one_more.done()
        await taken.aclose()


async def test_endpoints_that_fail_leave_others_room() -> None:
    slots = Slots()
    async with AsyncExitStack() as taken, asyncio.TaskGroup() as group:
        for number in range(MAX_FAILING_REQUESTS):
            await taken.enter_async_context(slots.take(str(number), failing=True))
        one_more = group.create_task(_pass(slots, "a", failing=True))
        await _pass(slots, "b", failing=False)
        assert not one_more.done()
        await taken.aclose()


async def test_endpoints_of_operators_wait_for_nobody() -> None:
    slots = Slots()
    async with AsyncExitStack() as taken:
        for number in range(MAX_REQUESTS):
            await taken.enter_async_context(slots.take(str(number), failing=False))
        for failing in False, True:
            await _pass(slots, None, failing=failing)


async def _pass(slots: Slots, customer: str | None, *, failing: bool) -> None:
    async with slots.take(customer, failing=failing):
        pass
