"""A delivering worker, put together: claims, leases, lanes, settlements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.claim import SESSION, Claims, Contents
from pgmta.store.schema import Schema
from pgmta.store.settle import Settlements
from queued.config import QueuedConfig, Worker
from queued.delivery.lane import Lane
from queued.worker.alarm import Alarm
from queued.worker.dispatch import Dispatch
from queued.worker.lease import Leases
from queued.worker.loop import Loop, Outage
from queued.worker.rota import Rota
from queued.worker.settler import Settler
from queued.worker.urgent import UrgentLoop

_TELL = 2.0  # seconds to wake others for what was handed back
_ANSWER = 3.0  # seconds for the answer to a claim that is under way when the worker stops
# An operator's transaction may hold a row for hours: the other outcomes do not wait for it.
_MORE = {"settle": {"lock_timeout": "1s"}}

log = get("worker")


class Deliverer:
    """One worker with the action deliver; `owner` is what its leases carry.

    `lane` is how mail leaves: by SMTP, unless another kind of lane is given. `freed` is told of
    each delivery whose content stands in pieces: the message's id and its octets.
    """

    def __init__(
        self,
        config: QueuedConfig,
        worker: Worker,
        uri: str,
        owner: str,
        where: str | None,
        lane: type[Lane] = Lane,
        freed: Callable[[int, int], None] = lambda message_id, octets: None,
        schema: Schema | None = None,
    ) -> None:
        self.name = worker.name
        self.rota = Rota()
        self._drain = config.worker.drain
        self._links = {
            name: Link(uri, f"queued {worker.name} {name}", SESSION | _MORE.get(name, {}))
            for name in ("claim", "urgent", "settle", "renew", "content")
        }
        lease = config.worker.lease
        level = -1 if config.urgent.priority is None else config.urgent.priority
        claims = Claims(
            self._links["claim"], owner, lease, where, worker.priority, urgent=level, schema=schema
        )
        self._leases = Leases(Claims(self._links["renew"], owner, lease))
        settlements = Settlements(self._links["settle"], owner)
        self._settler = Settler(settlements, self._settled)
        self._dispatch = Dispatch(
            config,
            Contents(self._links["content"]),
            self._leases.valid,
            self._settler.put,
            lane,
            freed,
        )
        outage = Outage()
        self.loop = Loop(
            worker,
            config.worker.poll,
            config.delivery.inline,
            claims,
            self._leases,
            self._dispatch,
            self.rota,
            outage,
        )
        self.urgent: UrgentLoop | None = None
        if places := config.urgent.places(worker.concurrency):
            # an owner of its own: what one loop gives back after an outage is not the other's
            urgent = Claims(
                self._links["urgent"],
                f"{owner}:urgent",
                lease,
                where,
                worker.priority,
                urgent=level,
                each=config.urgent.bound,
                schema=schema,
            )
            self.urgent = UrgentLoop(
                worker,
                config.worker.poll,
                config.delivery.inline,
                urgent,
                self._leases,
                self._dispatch,
                self.rota,
                outage,
                claims,
                places,
            )
        self.wake = Alarm(self.rota, self._wake).ring

    def _wake(self) -> None:
        self.loop.wake()
        if self.urgent:
            self.urgent.wake()

    def _settled(self, item: Item) -> None:
        self.loop.settled(item)
        if self.urgent:
            self.urgent.freed()

    @property
    def handled(self) -> int:
        """Rows settled since the start."""
        return self.loop.handled

    def tasks(self) -> list[Coroutine[None, None, None]]:
        """What runs until it is cancelled; the loop itself is stopped by `drain`."""
        urgent = [self.urgent.run()] if self.urgent else []
        return [self._leases.keep(), self._settler.run(), *urgent]

    def configure(self, config: QueuedConfig) -> None:
        """Use new routes, limits and intervals from now on."""
        self._dispatch.configure(config)
        for loop in (self.loop, self.urgent):
            if loop:
                loop.inline = config.delivery.inline

    async def drain(
        self, loop: asyncio.Task[None], handed_back: Callable[[], Awaitable[None]]
    ) -> None:
        """Stop to claim, let deliveries end within the time for it, write every outcome.

        `handed_back` is awaited once what had not begun is in the queue again.
        """
        log.info("draining", worker=self.name, rows=len(self._leases))
        loops = [self.loop, *([self.urgent] if self.urgent else [])]
        for each in loops:
            each.stop()
        try:
            async with asyncio.timeout(_ANSWER):
                await self._ended(loop)
        except TimeoutError:
            for each in loops:
                each.give_up()
            await self._ended(loop)
        self._dispatch.drain()
        telling = asyncio.create_task(self._tell(handed_back))
        try:
            async with asyncio.timeout(self._drain):
                await self._dispatch.wait()
        except TimeoutError:
            log.warning("dropping connections", worker=self.name, rows=len(self._leases))
            await self._dispatch.abort()
        try:
            async with asyncio.timeout(max(self._drain, 5.0)):
                await self._settler.flush()
        except TimeoutError:
            # the leases run out, and the log of attempts will say that the outcomes are unknown
            log.error("outcomes not written: the database is away", rows=len(self._leases))
            for outcome in self._settler.open:
                item = outcome.item
                log.warning("outcome not written", row=item.id, message=item.message_id,
                            recipient=item.recipient, outcome=outcome.event.value,
                            reply=str(outcome.reply))  # fmt: skip
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL):
                await telling

    async def _ended(self, loop: asyncio.Task[None]) -> None:
        """Wait until nothing is claimed any more."""
        if self.urgent:
            await self.urgent.ended.wait()
        await asyncio.wait([loop])

    async def _tell(self, handed_back: Callable[[], Awaitable[None]]) -> None:
        await self._settler.flush()
        with suppress(StoreUnavailable, psycopg.Error):
            await handed_back()

    async def close(self) -> None:
        """End the connections."""
        for link in self._links.values():
            await link.close()
