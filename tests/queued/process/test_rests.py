"""Duties rest for longer after work that was dear, and so leave PostgreSQL to the mail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from pgmta.store.admin.upkeep import Look, Upkeep
from pgmta.store.admin.vacuum import Space
from queued.process import task_look, vacuum
from queued.process.delivery_figures import DeliveryFigures
from queued.process.task_look import TaskLook
from queued.process.vacuum import Reclaimer, RowVacuum
from tests.support.waiting import let_others_run


class Dear:
    """Work of the database that takes `seconds` by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.seconds = 0.0
        self.done = 0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (task_look, vacuum):
            monkeypatch.setattr(module, "time", clock)

    async def work(self, **_: bool) -> None:
        self.now += self.seconds
        self.done += 1

    vacuum_crowded = reclaim = work

    async def look(self) -> frozenset[Look]:
        await let_others_run()  # which ask meanwhile
        await self.work()
        return frozenset()


class Over(Exception):
    """Ends a duty when it rests; has the seconds."""


async def over(seconds: float) -> None:
    raise Over(seconds)


async def rest_of(duty: RowVacuum | Reclaimer, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the rest of a duty after one piece of work."""
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", over)
        with pytest.raises(Over) as rest:
            await duty.run()
    return float(rest.value.args[0])


@pytest.mark.parametrize(("took", "rest"), [(0.1, 1.0), (0.5, 2.0), (1.0, 4.0), (60.0, 5.0)])
async def test_a_vacuum_of_rows_comes_soon_after_a_long_one(
    took: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot made it long, and when that is gone the next one is wanted at once."""
    monkeypatch.setattr(vacuum, "together", lambda seconds: seconds)
    dear, figures = Dear(monkeypatch), DeliveryFigures()
    dear.seconds, figures.claimed = took, 500
    duty = RowVacuum(cast(Space, dear), figures)
    assert await rest_of(duty, monkeypatch) == pytest.approx(rest)
    assert await rest_of(duty, monkeypatch) == 1.0  # there was nothing to do
    assert dear.done == 1


@pytest.mark.parametrize(("took", "rest"), [(0.5, 2.0), (1.9, 7.6), (3.0, 60.0)])
async def test_a_vacuum_of_content_that_was_long_is_rare(
    took: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = Dear(monkeypatch)
    dear.seconds = took
    duty = Reclaimer(cast(Space, dear), step=1, quiet=3600)
    duty.freed(1, 1)
    assert await rest_of(duty, monkeypatch) == pytest.approx(rest)
    assert dear.done == 1


@pytest.mark.parametrize(("took", "counts"), [(0.001, 0.9), (0.08, 1.6), (1.0, 2.0), (30.0, 0.0)])
async def test_one_look_answers_for_all_duties_a_while(
    took: float, counts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dear one for at most 2 s, and in any case for all that have waited for it."""
    dear = Dear(monkeypatch)
    dear.seconds = took
    duties, look = TaskLook(cast(Upkeep, dear)), cast(Look, None)
    began = dear.now
    await asyncio.gather(*(duties.may(look) for _ in range(3)))
    assert dear.done == 1
    if counts:
        dear.now = began + counts - 0.01
        await duties.may(look)
        assert dear.done == 1
        dear.now = began + counts + 0.01
    await duties.may(look)
    assert dear.done == 2
