"""The feeder: it keeps a little of each campaign in the queue, and gives jobs their credentials."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine

import psycopg

from pgmta_features.campaigns.feed import DUE, CampaignFeed
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import repeat

_RATED_PAUSE_S = 0.1  # between rounds that each feed two seconds of mail at most
_FAST_PAUSE_S = 0.02  # without a rate: a round feeds 200 mails


class Feeder:
    """Feeds all campaigns that may run, in turn; any process may feed any of them.

    It keeps no state, so that nothing has to be taken over when it dies. `wake` wakes the workers.
    While no campaign feeds the queue it looks every `poll` seconds.
    """

    def __init__(
        self, feed: CampaignFeed, wake: Callable[[], Awaitable[None]], poll: float
    ) -> None:
        self._feed = feed
        self._wake = wake
        self._idle = self._pause = poll

    def pause(self) -> float:
        """Return the seconds until the next round."""
        return self._pause

    def rest(self) -> None:
        """Have the next round follow after `poll`: nothing is known to be fed."""
        self._pause = self._idle * random.uniform(0.5, 1.0)  # noqa: S311 - processes take turns

    async def feed(self) -> None:
        """Do one round. Raises StoreUnavailable, psycopg.Error.

        A campaign that the database refuses keeps no other one back.
        """
        self.rest()
        while await self._feed.take():
            pass
        fed, refused = 0, None
        for credential, rate in await self._feed.active():
            try:
                number, more = await self._feed.feed(credential)
            except psycopg.Error as error:
                refused = error
                continue
            fed += number
            if number or more:
                self._pause = min(self._pause, _FAST_PAUSE_S if rate is None else _RATED_PAUSE_S)
        if fed:
            await self._wake()
        if refused:
            raise refused


def feed_campaigns(process: QueuedProcess) -> Coroutine[None, None, None]:
    """Feed campaigns until cancelled."""
    feed = CampaignFeed(process.resources.link("campaigns"), process.name)
    feeder = Feeder(feed, process.registry.wake, process.config.process.poll)

    async def do() -> None:
        process.schema.require()
        if not await process.tasks_due.may(DUE):
            feeder.rest()
            return
        await feeder.feed()

    return repeat("campaigns", do, feeder.pause)
