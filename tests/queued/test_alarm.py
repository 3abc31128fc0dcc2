"""What wakes a worker, and when."""

from __future__ import annotations

import asyncio

from queued.worker.alarm import Alarm
from queued.worker.rota import Rota


class Others(Rota):
    """Others have the turn, for the pause given."""

    length = 0.01

    @property
    def pause(self) -> float:
        """Seconds."""
        return self.length


async def test_what_comes_in_a_pause_has_a_pause_of_its_own() -> None:
    rota, woken = Others(), asyncio.Queue[str]()
    alarm = Alarm(rota, lambda: woken.put_nowait("woken"))
    alarm.ring()
    assert woken.empty()
    await woken.get()
    rota.length = 0.0
    alarm.ring()
    assert woken.get_nowait()  # our turn: at once
    rota.length = 0.01
    for _ in range(3):
        alarm.ring()
    await woken.get()
    await woken.get()  # for what came after the first: it may be too young for the look before
    rota.length = 0.0
    alarm.ring()
    assert woken.get_nowait()
    assert woken.empty()
