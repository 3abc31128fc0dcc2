"""Rows with `once` whose lease ran out: they are logged as unknown, and not sent again."""

from __future__ import annotations

from pgmta.logs import get
from pgmta.store.lost import FinalLeases

EVERY = 2.0  # seconds
_PAGE = 5000  # rows that one statement looks at
_PAGES = 2  # such statements per round: the next round goes on
_BATCH = 500  # rows that one statement settles

log = get("upkeep")


class FinalLeaseDuty:
    """Settles these rows, a part of all rows with `once` per round.

    After an outage of the database it waits for one more round. The workers that were cut off as
    well can write the outcomes that they know first.
    """

    def __init__(self, leases: FinalLeases) -> None:
        self._leases = leases
        self._after = 0  # the last row that was looked at
        self._sure = False  # whether the last round had the database

    async def settle(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        sure, self._sure = self._sure, False
        settled = 0
        try:
            for _ in range(_PAGES):
                last, number, ran_out = await self._leases.next(self._after, _PAGE)
                for start in range(0, len(ran_out) if sure else 0, _BATCH):
                    settled += await self._leases.settle(ran_out[start : start + _BATCH])
                self._after = last if number == _PAGE else 0
                if not self._after:
                    break
        finally:
            if settled:
                log.warning("leases ran out, and these rows are not sent again", rows=settled)
        self._sure = True
