"""Groups that grow under load, and lone ones that do not wait."""

from __future__ import annotations

import asyncio

from queued.worker.settler import BatchWindow
from tests.support.waiting import let_others_run

LONG = 60.0


async def goes(window: BatchWindow, *arrivals: int) -> int:
    """How many of the arrivals it takes until the group goes; the first is there at the start."""
    waiting = asyncio.create_task(window.wait(arrivals[0]))
    for place, number in enumerate(arrivals):
        window.added(number)
        for _ in range(3):
            await let_others_run()
        if waiting.done():
            return place + 1
    waiting.cancel()
    return 0


async def test_a_group_waits_for_as_many_as_the_last_time() -> None:
    window = BatchWindow(LONG, most=4)
    assert await goes(window, 1) == 1
    window.sent(3)
    assert await goes(window, 1, 2, 3) == 3
    assert await goes(window, 3) == 1
    window.sent(100)
    assert await goes(window, 1, 3, 4) == 3
    window.sent(1)
    assert await goes(window, 1) == 1


async def test_but_not_for_long() -> None:
    window = BatchWindow(0.001, most=4)
    window.sent(4)
    async with asyncio.timeout(LONG):
        await window.wait(1)
