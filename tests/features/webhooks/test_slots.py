"""The places of requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from pgmta_features.webhooks.leased_webhooks import Owner
from pgmta_features.webhooks.slots import MAX_FAILING_REQUESTS, MAX_REQUESTS_OF_OWNER, Slots


async def test_slow_endpoints_of_one_owner_leave_others_room() -> None:
    slots, slow = Slots(), (None, "key:slow")
    async with AsyncExitStack() as taken, asyncio.TaskGroup() as group:
        for _ in range(MAX_REQUESTS_OF_OWNER):
            await taken.enter_async_context(slots.take(slow, failing=False))
        one_more = group.create_task(_pass(slots, slow, failing=False))
        for other in None, (None, "key:good"), ("slow", "key:slow"):
            await _pass(slots, other, failing=False)
        await _pass(slots, slow, failing=True)
        assert not one_more.done()
        await taken.aclose()


async def test_slow_endpoints_of_operators_leave_each_other_room() -> None:
    slots = Slots()
    async with AsyncExitStack() as taken:
        for _ in range(2 * MAX_REQUESTS_OF_OWNER):
            await taken.enter_async_context(slots.take(None, failing=False))
        await _pass(slots, None, failing=False)


async def test_endpoints_that_fail_leave_others_room() -> None:
    slots = Slots()
    async with AsyncExitStack() as taken, asyncio.TaskGroup() as group:
        for number in range(MAX_FAILING_REQUESTS):
            await taken.enter_async_context(slots.take((str(number), None), failing=True))
        one_more = group.create_task(_pass(slots, (None, "a"), failing=True))
        await _pass(slots, (None, "b"), failing=False)
        assert not one_more.done()
        await taken.aclose()


async def _pass(slots: Slots, owner: Owner | None, *, failing: bool) -> None:
    async with slots.take(owner, failing=failing):
        pass
