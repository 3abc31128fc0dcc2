"""The order of service."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from pgmta.aging_queue import AgingQueue, PriorityLock
from tests.support.waiting import let_others_run


@given(st.lists(st.one_of(st.integers(0, 5), st.none()), max_size=60))
def test_lowest_first_but_no_entry_waits_for_ever(steps: list[int | None]) -> None:
    """Each step puts a number or takes one; a second passes with each."""
    now = 0.0
    line: AgingQueue[tuple[int, float]] = AgingQueue(patience=4.5, clock=lambda: now)
    there: list[tuple[int, float]] = []
    for step in [*steps, *[None] * len(steps)]:
        now += 1
        if step is not None:
            there.append((step, now))
            line.put(step, (step, now))
            continue
        old = [one for one in there if now - one[1] >= 4.5]
        expected = old[0] if old else min(there, default=None)
        assert line.take() == expected
        if expected:
            there.remove(expected)
    assert line.take() is None


def test_removed_items_are_not_taken() -> None:
    line: AgingQueue[int] = AgingQueue()
    for number in (3, 1, 4, 1, 5):
        line.put(number, number)
    assert line.remove(lambda number: number == 1) == [1, 1]
    assert [line.take() for _ in range(4)] == [3, 4, 5, None]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["stay", "go early", "go late"]))))
def test_lowest_first_also_after_cancellations(callers: list[tuple[int, str]]) -> None:
    """Tasks that are cancelled before their turn, or in the moment it comes, stop no other."""
    served: list[int] = []

    async def caller(turns: PriorityLock, number: int) -> None:
        async with turns.hold(number):
            served.append(number)
            await let_others_run()

    async def work() -> None:
        turns = PriorityLock()
        async with turns.hold(0):
            tasks = [asyncio.create_task(caller(turns, number)) for number, _ in callers]
            await let_others_run()
            assert served == []
            for task, (_, what) in zip(tasks, callers, strict=True):
                if what == "go early":
                    task.cancel()
        for task, (_, what) in zip(tasks, callers, strict=True):
            if what == "go late":  # the first of these may have the lock already
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with turns.hold(0):  # no task kept it
            pass

    asyncio.run(work())
    assert served == sorted(number for number, what in callers if what == "stay")
