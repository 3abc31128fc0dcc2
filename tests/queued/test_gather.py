"""Groups that grow under load, and lone ones that do not wait."""

from __future__ import annotations

import asyncio

from queued.worker.gather import Gather

LONG = 60.0


async def goes(gather: Gather, *arrivals: int) -> int:
    """How many of the arrivals it takes until the group goes; the first is there at the start."""
    waiting = asyncio.create_task(gather.wait(arrivals[0]))
    for place, number in enumerate(arrivals):
        gather.come(number)
        for _ in range(3):
            await asyncio.sleep(0)
        if waiting.done():
            return place + 1
    waiting.cancel()
    return 0


async def test_a_group_waits_for_as_many_as_the_last_time() -> None:
    gather = Gather(LONG, most=4)
    assert await goes(gather, 1) == 1
    gather.gone(3)
    assert await goes(gather, 1, 2, 3) == 3
    assert await goes(gather, 3) == 1
    gather.gone(100)
    assert await goes(gather, 1, 3, 4) == 3
    gather.gone(1)
    assert await goes(gather, 1) == 1


async def test_but_not_for_long() -> None:
    gather = Gather(0.001, most=4)
    gather.gone(4)
    async with asyncio.timeout(LONG):
        await gather.wait(1)
