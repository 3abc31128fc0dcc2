"""Who is next."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from queued.turns import Turns


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["stay", "go early", "go late"]))))
def test_lowest_first_whoever_goes(people: list[tuple[int, str]]) -> None:
    """Those that are cancelled before their turn, or in the moment it comes, keep up nobody."""
    served: list[int] = []

    async def person(turns: Turns, number: int) -> None:
        async with turns.of(number):
            served.append(number)
            await asyncio.sleep(0)

    async def work() -> None:
        turns = Turns()
        async with turns.of(0):
            tasks = [asyncio.create_task(person(turns, number)) for number, _ in people]
            await asyncio.sleep(0)
            assert served == []
            for task, (_, what) in zip(tasks, people, strict=True):
                if what == "go early":
                    task.cancel()
        for task, (_, what) in zip(tasks, people, strict=True):
            if what == "go late":  # the first of these may have been told already
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with turns.of(0):  # nobody kept it
            pass

    asyncio.run(work())
    assert served == sorted(number for number, what in people if what == "stay")
