"""Composition root of queued: one delivering worker on one database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from queued.config.queued import QueuedConfig
from queued.db import Link
from queued.errors import ConfigError
from queued.listen import listen
from queued.logs import get
from queued.service import Signals, first
from queued.store.claim import SESSION, Claims, Contents
from queued.store.settle import Settlements
from queued.upkeep.partitions import keep_partitions
from queued.worker.dispatch import Dispatch
from queued.worker.lease import Leases
from queued.worker.loop import Loop
from queued.worker.settler import Settler

log = get("queued")


class Daemon:
    """Everything that one queued process is made of."""

    def __init__(self, config: QueuedConfig, uri: str, reread: Callable[[], QueuedConfig]) -> None:
        self._config = config
        self._reread = reread
        self._uri = uri
        worker = config.worker
        owner = f"{worker.name}@{config.environment.hostname}:{os.getpid()}"
        self._links = {
            name: Link(uri, f"queued {name}", SESSION)
            for name in ("claim", "settle", "renew", "content", "upkeep")
        }
        where = config.environment.database.where
        claims = Claims(self._links["claim"], owner, worker.lease, where)
        renewals = Claims(self._links["renew"], owner, worker.lease, where)
        self._leases = Leases(renewals)
        self._settler = Settler(
            Settlements(self._links["settle"], owner), lambda item: self._loop.settled(item)
        )
        self._dispatch = Dispatch(
            config, Contents(self._links["content"]), self._leases.valid, self._settler.put
        )
        self._loop = Loop(worker, config.delivery.inline, claims, self._leases, self._dispatch)

    async def run(self) -> None:
        """Deliver until SIGTERM or SIGINT, then drain."""
        signals = Signals()
        background = [
            asyncio.create_task(task)
            for task in (
                listen(self._uri, self._loop.wake),
                self._leases.keep(),
                self._settler.run(),
                keep_partitions(self._links["upkeep"]),
            )
        ]
        for task in background:
            task.add_done_callback(lambda done: _died(done, signals))
        loop = asyncio.create_task(self._loop.run())
        loop.add_done_callback(lambda done: _died(done, signals))
        log.info("ready", worker=self._config.worker.name, in_flight=self._config.worker.in_flight)
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                self._reload()
        log.info("draining", rows=len(self._leases))
        self._loop.stop()
        await loop
        await self._drain()
        failed = [task for task in background if task.done() and not task.cancelled()]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for link in self._links.values():
            await link.close()
        log.info("stopped")
        for task in failed:
            task.result()

    async def _drain(self) -> None:
        grace = self._config.worker.drain
        try:
            async with asyncio.timeout(grace):
                await self._dispatch.drain()
        except TimeoutError:
            log.warning("dropping connections", after=grace, rows=len(self._leases))
            await self._dispatch.abort()
        try:
            async with asyncio.timeout(max(grace, 5.0)):
                await self._settler.flush()
        except TimeoutError:
            # the leases run out, and the log will say that the outcomes are unknown
            log.error("outcomes not written: the database is away", rows=len(self._leases))

    def _reload(self) -> None:
        try:
            config = self._reread()
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return
        fixed = [
            name
            for name in ("environment", "worker", "log")
            if getattr(config, name) != getattr(self._config, name)
        ]
        if fixed:
            log.warning("these sections need a restart", sections=fixed)
        kept = {name: getattr(self._config, name) for name in ("environment", "worker", "log")}
        self._config = config.model_copy(update=kept)
        self._dispatch.configure(self._config)
        self._loop.inline = self._config.delivery.inline
        log.info("configuration read again")


def _died(task: asyncio.Task[None], signals: Signals) -> None:
    """A part that ends by itself is a defect: stop the process, so that its keeper sees it."""
    if not task.cancelled() and (error := task.exception()):
        log.critical("a part of the worker failed", exc_info=error)
        signals.stop.set()
