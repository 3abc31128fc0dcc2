"""Jobs of campaigns: mail that must not go is taken out of the queue, and done jobs end."""

from __future__ import annotations

import time
from collections.abc import Callable

from pgmta_features.campaigns.feed import DUE, CampaignFeed
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

_BATCH = 1000  # recipients of a job in one commit
_FEW = 2000  # recipients in the queue that each round compares with the queue
_SELDOM = 30  # rounds between two comparisons of more
_REST = 20  # times the duration of an end, until the next one: it may read each deferred recipient


class CampaignJobs:
    """Withdraws, reconciles, halts and finalises, each in a separate commit.

    `lease` returns the seconds of a worker's lease.
    """

    def __init__(self, feed: CampaignFeed, lease: Callable[[], float]) -> None:
        self._feed = feed
        self._lease = lease
        self._round = 0
        self._ends_at = 0.0  # monotonic

    async def tend(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        await self._feed.halt()
        while await self._feed.withdraw(_BATCH) >= _BATCH:
            pass
        self._round += 1
        if self._round % _SELDOM == 0 or await self._feed.waiting() <= _FEW:
            while await self._feed.reconcile(_BATCH) >= _BATCH:
                pass
        began = time.monotonic()
        if began >= self._ends_at:
            await self._feed.finalise(self._lease())
            self._ends_at = time.monotonic() + _REST * (time.monotonic() - began)


def _make(process: QueuedProcess) -> Work:
    feed = CampaignFeed(process.link, process.name)
    return CampaignJobs(feed, lambda: process.config.process.lease).tend


DUTY = Duty("campaign jobs", 1.0, _make, in_turn=True, look=DUE)
