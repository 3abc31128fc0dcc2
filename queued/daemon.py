"""Composition root of queued: the workers of one configuration, and the upkeep beside them."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import psycopg

from pgmta.errors import ConfigError, StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.postgres.notify import listen
from pgmta.service import Signals, first, tune_memory
from pgmta.store.change import WorkerChanges
from pgmta.store.conditions import both, reach
from pgmta.store.daemons import BEAT, Heartbeat
from pgmta.store.row_change import Action as RowAction
from pgmta.store.row_change import RowChange
from pgmta.store.schema import Schema
from pgmta.store.space import Space
from pgmta.store.upkeep import Upkeep
from pgmta.store.workers import Entry, Registry, Rule
from queued.config import STANDING, Action, QueuedConfig, Worker
from queued.upkeep import attempts, orphans, requests, untaken
from queued.upkeep.repeat import repeat
from queued.upkeep.space import Reclaimer
from queued.worker.deliver import Deliverer
from queued.worker.row_worker import RowWorker

_LOOK = 0.5  # seconds between looks at who else claims the same rows
_LOOKS = 6  # of them, until nothing is new
_LOOK_SETTLED = 5.0  # seconds from then on
_RETRY = 0.5  # seconds, while PostgreSQL is away at the start

log = get("queued")


class Daemon:
    """Everything that one queued process is made of; `names` chooses workers, none means all."""

    def __init__(
        self,
        config: QueuedConfig,
        uri: str,
        reread: Callable[[], QueuedConfig],
        signals: Signals,
        names: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._reread = reread
        self._signals = signals
        self._uri = uri
        # unique: containers may share host names, and every one of them begins at the same pid
        self._process = f"{config.environment.hostname}:{os.getpid()}:{secrets.token_hex(3)}"
        self._link = Link(uri, "queued upkeep")
        self._upkeep = Upkeep(self._link)
        self._changes = WorkerChanges(self._link)
        self._vacuum = Link(uri, "queued vacuum")
        self._reclaimer = Reclaimer(Space(self._vacuum))
        self._registry = Registry(self._link, self._process)
        self._schema = Schema()
        host = config.environment.hostname
        self._heartbeat = Heartbeat(self._link, self._schema, self._process, "queued", host)
        self._looks = _LOOKS
        self._leaving = False
        self._workers = [w for w in config.workers if not names or w.name in names]
        self._deliverers = [
            Deliverer(
                config,
                worker,
                uri,
                f"{worker.name}@{self._process}",
                self._where(worker),
                freed=self._reclaimer.freed,
                schema=self._schema,
            )
            for worker in self._workers
            if worker.action is Action.DELIVER
        ]
        self._row_workers = [
            RowWorker(
                worker.name,
                self._changes,
                self._change(worker),
                worker.every,
                self._schema,
                worker.batch,
            )
            for worker in self._workers
            if worker.action is not Action.DELIVER
        ]

    def _where(self, worker: Worker) -> str | None:
        return both(self._config.environment.database.where, worker.where)

    def _change(self, worker: Worker) -> RowChange:
        standing = worker.action in STANDING and not worker.older
        return RowChange(
            action=RowAction(worker.action.value),
            where=self._where(worker) or "true",
            who=f"{worker.name}@{self._process}",
            reason=worker.reason or f"worker {worker.name}",
            older=worker.older or 0.0,
            release_after=worker.release_after,
            quarantine=worker.quarantine,
            owner=f"{'rule' if standing else 'worker'} {worker.name}",
            rule=worker.name if standing else None,
        )

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain."""
        signals = self._signals
        if signals.stop.is_set() or not await self._register():
            return
        background = [asyncio.create_task(work) for work in self._background()]
        loops = {d: asyncio.create_task(d.loop.run()) for d in self._deliverers}
        for task in (*background, *loops.values()):
            task.add_done_callback(lambda done: _died(done, signals))
        tune_memory()
        log.info("ready", workers=[worker.name for worker in self._workers])
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                self._reload()
        # nobody shall wait for our turns while we drain, nor for what we hand back
        drains = (d.drain(loop, self._registry.wake) for d, loop in loops.items())
        await asyncio.gather(self._leave(), *drains)
        failed = [t for t in (*background, *loops.values()) if t.done() and not t.cancelled()]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for deliverer in self._deliverers:
            await deliverer.close()
        await self._heartbeat.leave()  # and with it self._link
        await self._vacuum.close()
        log.info("stopped")
        for task in failed:
            task.result()

    async def _leave(self) -> None:
        self._leaving = True
        try:
            async with asyncio.timeout(2):
                await self._registry.leave()
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            pass  # the heartbeat ends

    def _background(self) -> list[Coroutine[None, None, None]]:
        retention = self._config.retention
        who = f"upkeep@{self._process}"
        return [
            listen(self._uri, self._wake, self._pause),
            self._reclaimer.run(),
            *(task for deliverer in self._deliverers for task in deliverer.tasks()),
            *(worker.run() for worker in self._row_workers),
            repeat("heartbeat", lambda: BEAT, self._beat),
            self._watch_untaken(),
            repeat("rota", lambda: _LOOK if self._looks else _LOOK_SETTLED, self._look),
            repeat(
                "requests",
                lambda: self._rest(requests.EVERY),
                self._fitting(lambda: requests.answer_requests(self._upkeep, self._changes, who)),
            ),
            repeat(
                "rules",
                lambda: self._rest(requests.RULES_EVERY),
                self._fitting(lambda: requests.apply_rules(self._changes, self._registry)),
            ),
            repeat(
                "attempts",
                lambda: attempts.EVERY,
                self._fitting(
                    lambda: attempts.keep_log(self._link, self._upkeep, retention.attempts)
                ),
            ),
            repeat(
                "orphans",
                lambda: orphans.EVERY,
                self._fitting(lambda: orphans.remove_orphans(self._upkeep, retention.orphans)),
            ),
        ]

    def _fitting(self, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same work, not done while the schema is of another version."""

        async def guarded() -> None:
            self._schema.require()
            await work()

        return guarded

    async def _watch_untaken(self) -> None:
        await asyncio.sleep(untaken.FIRST)
        await repeat(
            "untaken", lambda: untaken.EVERY, lambda: untaken.warn_of_untaken(self._registry)
        )

    def _wake(self) -> None:
        for deliverer in self._deliverers:
            deliverer.wake()

    def _pause(self) -> float:
        return min((deliverer.rota.pause for deliverer in self._deliverers), default=0.0)

    def _rest(self, every: float) -> float:
        return min((d.rota.rest(every) for d in self._deliverers), default=every)

    async def _register(self) -> bool:
        """Announce workers and rules before the first claim; False where we are stopped first."""
        entries = [
            Entry(w.name, w.action.value, self._where(w), reach(self._where(w)), w.priority)
            for w in self._workers
        ]
        rules = [
            Rule(
                w.name,
                w.action.value,
                self._where(w) or "true",
                w.reason or f"worker {w.name}",
                w.quarantine,
                w.release_after,
            )
            for w in self._config.workers
            if w.action in STANDING and not w.older
        ]
        told = ""
        while True:
            try:
                await self._heartbeat.beat()
                self._schema.require()
                await self._registry.register(entries, rules)
                return True
            except StoreUnavailable as error:
                if told != str(error):
                    told = str(error)
                    log.warning("waiting for the database", reason=told)
                if await first(self._signals.stop, timeout=_RETRY):
                    return False

    async def _beat(self) -> None:
        await self._heartbeat.beat()
        if self._leaving or self._schema.problem:
            return  # our turns go to others
        handled = {deliverer.name: deliverer.handled for deliverer in self._deliverers}
        handled.update((worker.name, worker.handled) for worker in self._row_workers)
        if not await self._registry.beat(handled) and not self._leaving:
            await self._register()

    async def _look(self) -> None:
        asked = time.monotonic()
        places = await self._registry.places()
        told = time.monotonic()
        self._looks = max(0, self._looks - 1)
        for deliverer in self._deliverers:
            rota, number = deliverer.rota, deliverer.rota.number
            place = places.get(deliverer.name)
            if place and rota.set(place.before, place.number, place.clock, asked, told):
                self._looks = _LOOKS
            if rota.number != number:
                log.info("workers share rows", worker=deliverer.name, workers=rota.number)

    def _reload(self) -> None:
        try:
            config = self._reread()
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return
        fixed = ("environment", "worker", "workers", "urgent", "retention", "log")
        changed = [n for n in fixed if getattr(config, n) != getattr(self._config, n)]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.warning("configuration kept in part", problems=problems)
        self._config = config.model_copy(update={n: getattr(self._config, n) for n in fixed})
        for deliverer in self._deliverers:
            deliverer.configure(self._config)
        log.info("configuration read again")


def _died(task: asyncio.Task[None], signals: Signals) -> None:
    """A part that ends by itself is a defect: stop the process, so that its keeper sees it."""
    if not task.cancelled() and (error := task.exception()):
        log.critical("a part of the worker failed", exc_info=error)
        signals.stop.set()
