"""Steps of the database's clock: each is named, and one back shortens the waits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from pgmta.logs import get
from pgmta.store.admin.upkeep import ClockLook, DatabaseClock
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

MIN_STEP_S = 30.0  # a clock that is set by less is no step

log = get("upkeep")


class ClockDuty:
    """Compares the clock of the database with the `monotonic` one, and with the time it showed.

    `look` looks at that clock, and shortens waits after a step back. Then `wake` is called.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[ClockLook]],
        wake: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._wake = wake
        self._monotonic = monotonic
        # seconds by which the database is ahead of the monotonic clock
        self._ahead: float | None = None

    async def do(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        asked = self._monotonic()
        found = await self._look()
        # counted from the end, because the answer may have taken a while
        late = found.seen - self._monotonic()
        before, self._ahead = self._ahead, late
        if found.back is not None:
            log.error("the clock of the database was set back: waits are shortened",
                      seconds=round(found.back), rows=found.rows)  # fmt: skip
            await self._wake()
        elif before is not None and late - before > MIN_STEP_S:
            log.error("the clock of the database was set forward: waits end early",
                      seconds=round(late - before))  # fmt: skip
        elif before is not None and before - (found.seen - asked) > MIN_STEP_S:
            log.error("the clock of the database was set back", seconds=round(before - late))


def _make(process: QueuedProcess) -> Work:
    stored = DatabaseClock(process.link, MIN_STEP_S, process.config.process.lease)

    async def look() -> ClockLook:
        asked = time.monotonic()
        found = await stored.look()
        process.clock.see(asked, time.monotonic(), found.seen)
        return found

    return ClockDuty(look, process.registry.wake).do


DUTY = Duty("clock", 5.0, _make)
