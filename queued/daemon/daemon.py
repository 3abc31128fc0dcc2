"""Composition root of queued: the workers of one configuration, and the upkeep beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pgmta.config.joined import lasting_sections
from pgmta.errors import ConfigError
from pgmta.features import begin_servers, import_paths, load, loaded
from pgmta.logs import get
from pgmta.postgres.notify import listen
from pgmta.service import Part, ServiceManager, Signals, first, start_part, tune_memory
from queued.config import QueuedConfig
from queued.config.queued_config import STAGING_KEYS
from queued.daemon.presence import Presence
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duties import all_duties
from queued.upkeep.duty import repeat
from queued.upkeep.reports import ReportDuty
from queued.worker.kinds import make_worker
from queued.worker.row_watch import RowWatch
from queued.worker.turns import TurnKeeper

_READY_TEXT = "delivers mail"

log = get("queued")


class Daemon:
    """All parts of one queued process; `names` chooses workers and loops of features, none means
    all.

    `reread` reads the configuration again, for SIGHUP. It raises ConfigError.
    """

    def __init__(
        self,
        config: QueuedConfig,
        uri: str,
        reread: Callable[[], QueuedConfig],
        signals: Signals,
        names: Sequence[str] = (),
        manager: ServiceManager | None = None,
    ) -> None:
        self._reread = reread
        self._signals = signals
        self._manager = manager or ServiceManager()
        self.process = process = QueuedProcess(config, uri)
        chosen = [worker for worker in config.workers if not names or worker.name in names]
        self._workers = [make_worker(process, worker) for worker in chosen]
        self._named = [
            (each.kind, run) for each in loaded("named_loops") for run in each.begin(process, names)
        ]
        self._loops = [loop for worker in self._workers for loop in worker.loops]
        self._turns = TurnKeeper(
            process.registry,
            {worker.name: loop.schedule for worker in self._workers for loop in worker.loops},
        )
        process.due_in = self._turns.due_in
        self._presence = Presence(process, signals, chosen, self._workers)

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain.

        Raises FormerDatabase. After any other error of a part that part begins again.
        """
        signals, process = self._signals, self.process
        if signals.stop.is_set() or not await self._presence.register():
            return
        servers = await begin_servers("queued", process, self._presence, self._workers)
        stop = signals.stop
        background = [start_part(name, work, stop) for name, work in self._background()]
        loops = {
            worker: [
                start_part(f"claims of {worker.name}", loop.run, stop) for loop in worker.loops
            ]
            for worker in self._workers
        }
        every = [*background, *(task for tasks in loops.values() for task in tasks)]
        tune_memory()
        self._manager.status(_READY_TEXT)
        log.info("ready", workers=[worker.name for worker in self._workers])
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                self._manager.reloading()
                kept = await self._reload()
                self._manager.ready(f"{_READY_TEXT}; the changed configuration has mistakes" if kept
                                    else _READY_TEXT)  # fmt: skip
        self._manager.stopping()
        for server in servers:
            server.begin_stop()
        # while we drain, others may not wait for our turns, or for rows that we hand back
        drains = (worker.drain(tasks) for worker, tasks in loops.items())
        await asyncio.gather(self._presence.leave(), *drains)
        failed = [task for task in every if task.done() and not task.cancelled()]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._presence.end()
        await process.close()
        for server in servers:
            await server.stop()
        log.info("stopped")
        for task in failed:
            task.result()

    def _background(self) -> list[tuple[str, Part]]:
        process, presence, turns = self.process, self._presence, self._turns
        watches = self._watches()
        told = [each.notified for each in watches]
        wakes = [*told, *(loop.wake for loop in self._loops)]
        return [
            ("notifications", partial(listen, process.resources, wakes, process.orders.news)),
            *(("new rows", each.run) for each in watches),
            *process.parts().items(),
            ("reports", ReportDuty(process).run),
            *(part for worker in self._workers for part in worker.parts().items()),
            ("heartbeat", partial(repeat, "heartbeat", presence.do, presence.pause)),
            ("turns", partial(repeat, "turns", turns.ask_places, turns.pause)),
            *((duty.name, partial(duty.run, process)) for duty in all_duties()),
            *((name, partial(load(path), process)) for _, name, path in import_paths("loops")),
            *self._named,
        ]

    def _watches(self) -> list[RowWatch]:
        """Return the watch for new rows, if there is one."""
        interval = self.process.config.process.watch
        if not (interval and self._loops):
            return []
        watch = RowWatch(self.process.resources, interval, self._loops, self.process.schema)
        for loop in self._loops:
            loop.claimed = watch.arrivals.claimed
        return [watch]

    async def _reload(self) -> bool:
        """Read the file again; return whether the old configuration is kept for its mistakes."""
        try:
            # not in the loop: it reads files, and may ask name servers for the name of the host
            config = await asyncio.to_thread(self._reread)
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return True
        try:
            self._configure(config)
        except Exception as error:  # a defect; the next SIGHUP may bring a better file
            log.critical("configuration is in use in part", exc_info=error)
            return True
        log.info("configuration read again")
        return False

    def _configure(self, config: QueuedConfig) -> None:
        now = self.process.config
        lasting = lasting_sections(type(config))
        changed = [name for name in lasting if getattr(config, name) != getattr(now, name)]
        kept: dict[str, Any] = {name: getattr(now, name) for name in lasting}
        # a reload does not begin staging, because mail under way would still go to its recipients
        staging = {name: getattr(now.delivery, name) for name in STAGING_KEYS}
        kept["delivery"] = config.delivery.model_copy(update=staging)
        changed += [
            f"delivery.{name}"
            for name, value in staging.items()
            if getattr(config.delivery, name) != value
        ]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.warning("configuration kept in part", problems=problems)
        config = config.model_copy(update=kept)
        for risk in config.warnings:
            log.warning("configuration", reason=risk)
        self.process.configure(config)
        for worker in self._workers:
            worker.configure(config)
