"""Jobs of campaigns: mail that must not go is taken out of the queue, and done jobs end."""

from __future__ import annotations

import time
from collections.abc import Callable

from pgmta.service import rest_after
from pgmta_features.campaigns.feed import DUE, CampaignFeed
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import Duty, Work

_RECIPIENTS_PER_COMMIT = 1000  # of a job
_MAX_FEW_RECIPIENTS = 2000  # with at most so many in the queue, each round reconciles
_ROUNDS_PER_COMPARISON = 30  # with more in it, only the last of so many rounds does


class CampaignJobs:
    """Withdraws, reconciles, halts and finalises, each in a separate commit.

    `lease` returns the seconds of a worker's lease.
    """

    def __init__(self, feed: CampaignFeed, lease: Callable[[], float]) -> None:
        self._feed = feed
        self._lease = lease
        self._round = 0
        self._ends_at = 0.0  # time of the next end, by the monotonic clock

    async def tend(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error."""
        await self._feed.halt()
        while await self._feed.withdraw(_RECIPIENTS_PER_COMMIT) >= _RECIPIENTS_PER_COMMIT:
            pass
        self._round += 1
        if (
            self._round % _ROUNDS_PER_COMPARISON == 0
            or await self._feed.waiting() <= _MAX_FEW_RECIPIENTS
        ):
            while await self._feed.reconcile(_RECIPIENTS_PER_COMMIT) >= _RECIPIENTS_PER_COMMIT:
                pass
        began = time.monotonic()
        if began >= self._ends_at:
            await self._feed.finalise(self._lease())
            now = time.monotonic()
            self._ends_at = now + rest_after(now - began)  # it may read each deferred recipient


def _make(process: QueuedProcess) -> Work:
    feed = CampaignFeed(process.link, process.name)
    return CampaignJobs(feed, lambda: process.config.process.lease).tend


DUTY = Duty("campaign jobs", 1.0, _make, in_turn=True, look=DUE)
