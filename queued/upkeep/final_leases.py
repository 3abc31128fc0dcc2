"""Rows with `once` whose lease ran out: no attempt follows one that had begun."""

from __future__ import annotations

import math
import time

from pgmta.logs import get
from pgmta.service import rest_after
from pgmta.store.queue.expired_leases import FinalLeases
from queued.upkeep.duty import Duty

_ROWS_PER_LOOK = 5000  # one statement takes some milliseconds
_ROWS_PER_SETTLE = 500
_MAX_REST_S = 30.0  # after a look that read many dead rows too

log = get("upkeep")


class FinalLeaseDuty:
    """Settles these rows: a round looks at one page of the rows with `once`, and the next goes on.

    After a page with lost rows it looks at the following one at once. After an outage of the
    database it waits for one more round: the workers that were cut off as well can write the
    outcomes that they know first.
    """

    def __init__(self, leases: FinalLeases) -> None:
        self._leases = leases
        self._after = 0  # id of the last row that was looked at
        self._sure = False  # whether the last round had the database
        self._rests_until = -math.inf

    async def work(self) -> None:
        """Do one round, unless the last look was dear. Raises StoreUnavailable, psycopg.Error."""
        if time.monotonic() >= self._rests_until:
            await self.settle()

    async def settle(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        sure, self._sure = self._sure, False
        settled = free = 0
        try:
            more = True
            while more:
                began = time.monotonic()
                last, number, ran_out = await self._leases.next(self._after, _ROWS_PER_LOOK)
                now = time.monotonic()
                self._rests_until = now + rest_after(now - began, _MAX_REST_S)
                for start in range(0, len(ran_out) if sure else 0, _ROWS_PER_SETTLE):
                    done, freed = await self._leases.settle(
                        ran_out[start : start + _ROWS_PER_SETTLE]
                    )
                    settled, free = settled + done, free + freed
                self._after = last if number == _ROWS_PER_LOOK else 0
                more = sure and bool(ran_out and self._after)
        finally:
            if settled:
                log.warning("leases ran out, and these rows are not sent again", rows=settled)
            if free:
                log.info("leases ran out before transactions began: rows are free again", rows=free)
        self._sure = True


DUTY = Duty(
    "final leases",
    2.0,
    lambda process: FinalLeaseDuty(FinalLeases(process.link, f"upkeep@{process.name}")).work,
    in_turn=True,
)
