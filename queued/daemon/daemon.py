"""Composition root of queued: the workers of one configuration, and the upkeep beside them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from pgmta.action import Action
from pgmta.errors import ConfigError
from pgmta.logs import get
from pgmta.postgres.notify import listen
from pgmta.postgres.resources import Resources
from pgmta.service import Signals, first, report_error, tune_memory
from pgmta.store.admin.clock import DatabaseClock
from pgmta.store.admin.daemons import Heartbeat
from pgmta.store.admin.space import Space
from pgmta.store.admin.upkeep import Upkeep
from pgmta.store.admin.workers import Entry, Registry, Rule
from pgmta.store.changes.change import WorkerChanges
from pgmta.store.queue.conditions import both, reach
from pgmta.store.queue.lost import FinalLeases
from pgmta.store.records.broken_tls import BrokenTlsHosts
from pgmta.store.records.dkim_keys import DkimKeys
from pgmta.store.records.sts_policies import StsPolicies
from pgmta.store.records.tls_reports import TlsReports
from pgmta.store.records.traces import Traces
from pgmta.store.schema import Schema
from queued.config import QueuedConfig, Worker
from queued.daemon.presence import Presence
from queued.daemon.row_changes import is_rule, row_change, rule
from queued.delivery.connect.connector import Connector
from queued.signing.keyring import Keyring
from queued.signing.signers import Signers
from queued.upkeep import (
    attempts,
    clock,
    dane_check,
    final_leases,
    keys,
    orphans,
    reports,
    requests,
    sts_policies,
    transcripts,
    untaken,
)
from queued.upkeep.repeat import RegularDuty, repeat
from queued.upkeep.reports import ReportDuty
from queued.upkeep.space import Reclaimer
from queued.worker.claim_loop import ClaimLoop
from queued.worker.delivery_worker import DeliveryWorker
from queued.worker.observer import Observer, TraceWatch
from queued.worker.row_watch import RowWatch
from queued.worker.row_worker import RowWorker
from queued.worker.tls_memory import TlsMemory
from queued.worker.turns import TurnKeeper
from queued.worker.urgent import UrgentLoop

_FIXED = ("environment", "process", "workers", "urgent", "retention", "log")
"""Sections that a running process does not take from a changed file."""

log = get("queued")


class Daemon:
    """All parts of one queued process; `names` chooses workers, none means all.

    `reread` reads the configuration again, for SIGHUP. It raises ConfigError.
    """

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
        self.resources = Resources(uri)
        """The connections to PostgreSQL."""
        # unique: containers may share host names, and each of them begins at the same pid
        self._process = f"{config.environment.hostname}:{os.getpid()}:{secrets.token_hex(3)}"
        self._link = self.resources.link("queued upkeep")
        self._upkeep = Upkeep(self._link)
        self._changes = WorkerChanges(self._link)
        self._reclaimer = Reclaimer(Space(self.resources.link("queued vacuum")))
        self._registry = Registry(self._link, self._process)
        self._schema = Schema()
        self._traces = Traces(self._link)
        self._observer = Observer(lines=config.log.attempts)
        self._workers = [w for w in config.workers if not names or w.name in names]
        self._tls = TlsMemory(self.resources, config.delivery.tls)
        host = config.environment.hostname
        self._connector = Connector(host, config.delivery, self._tls)
        keys = self.resources.link("queued keys", {"lock_timeout": "2s"})
        self._signers = Signers(Keyring(DkimKeys(keys)), config.signing)
        self._delivering = [
            self._delivery_worker(w) for w in self._workers if w.action is Action.DELIVER
        ]
        self._row_workers = [
            self._row_worker(w) for w in self._workers if w.action is not Action.DELIVER
        ]
        self._presence = Presence(
            Heartbeat(self._link, self._schema, self._process, "queued", host),
            self._registry,
            self._schema,
            signals,
            self._entries(),
            self._rules(),
            {w.name: w for w in self._delivering} | {w.name: w for w in self._row_workers},
            TraceWatch(self._traces, self._observer),
        )
        self._turns = TurnKeeper(self._registry, {w.name: w.schedule for w in self._delivering})
        self._reports = ReportDuty(
            self.resources, self._process, self._schema, lambda: self._config, self._turns
        )

    def _delivery_worker(self, worker: Worker) -> DeliveryWorker:
        return DeliveryWorker(
            self._config,
            worker,
            self.resources,
            f"{worker.name}@{self._process}",
            self._where(worker),
            self._connector,
            self._reclaimer,
            self._schema,
            self._observer,
            self._signers,
            lambda: self._reports.wake(),
        )

    def _row_worker(self, worker: Worker) -> RowWorker:
        change = row_change(worker, self._where(worker), self._process)
        return RowWorker(
            worker.name, self._changes, change, worker.every, self._schema, worker.batch
        )

    def _entries(self) -> list[Entry]:
        return [
            Entry(w.name, w.action.value, self._where(w), reach(self._where(w)), w.priority)
            for w in self._workers
        ]

    def _rules(self) -> list[Rule]:
        return [rule(w, self._where(w)) for w in self._config.workers if is_rule(w)]

    def _where(self, worker: Worker) -> str | None:
        return both(self._config.environment.database.where, worker.where)

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain.

        Raises the error of a part that ended by itself.
        """
        signals = self._signals
        if signals.stop.is_set() or not await self._presence.register():
            return
        background = [asyncio.create_task(work) for work in self._background()]
        loops = {
            worker: [asyncio.create_task(loop.run()) for loop in worker.loops]
            for worker in self._delivering
        }
        every = [*background, *(task for tasks in loops.values() for task in tasks)]
        for task in every:
            report_error("worker", task, signals.stop)
        tune_memory()
        log.info("ready", workers=[worker.name for worker in self._workers])
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                self._reload()
        # the others shall not wait for our turns while we drain, nor for rows that we hand back
        drains = (worker.drain(tasks, self._registry) for worker, tasks in loops.items())
        await asyncio.gather(self._presence.leave(), *drains)
        failed = [task for task in every if task.done() and not task.cancelled()]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._tls.close()
        self._signers.close()
        await self._presence.end()
        await self.resources.close()
        log.info("stopped")
        for task in failed:
            task.result()

    def _background(self) -> list[Coroutine[None, None, None]]:
        loops = [loop for worker in self._delivering for loop in worker.loops]
        return [
            listen(self.resources, loops),
            *self._watch(loops),
            self._reclaimer.run(),
            self._tls.run(),
            self._signers.keyring.run(),
            self._reports.run(),
            *(task for worker in self._delivering for task in worker.tasks()),
            *(worker.run() for worker in self._row_workers),
            repeat("heartbeat", self._presence),
            repeat("turns", self._turns),
            *(repeat(name, duty) for name, duty in self._duties().items()),
            repeat(
                "untaken",
                RegularDuty(
                    untaken.EVERY, partial(untaken.warn_of_untaken, self._registry), self._schema
                ),
                untaken.FIRST,
            ),
        ]

    def _watch(self, loops: Sequence[ClaimLoop | UrgentLoop]) -> list[Coroutine[None, None, None]]:
        """Return the watch for new rows, if there is one."""
        interval = self._config.process.watch
        if not (interval and loops):
            return []
        watch = RowWatch(self.resources, interval, loops, self._schema)
        for worker in self._delivering:
            worker.watched(watch.claimed)
        return [watch.run()]

    def _duties(self) -> dict[str, RegularDuty]:
        """Return the upkeep of the queue, by the name that the log has for it."""
        retention = self._config.retention
        schema, upkeep, changes = self._schema, self._upkeep, self._changes
        answer = partial(requests.answer_requests, upkeep, changes, f"upkeep@{self._process}")
        rules = partial(requests.apply_rules, changes, self._registry)
        log_days = partial(attempts.keep_log, self._link, upkeep, retention.attempts)
        dialogues = partial(
            transcripts.keep_transcripts, self._link, self._traces, retention.transcripts
        )
        bodies = partial(orphans.remove_orphans, upkeep, retention.orphans)
        final = final_leases.FinalLeaseDuty(FinalLeases(self._link, f"upkeep@{self._process}"))
        host = self._config.environment.hostname
        submissions = partial(keys.expire_keys, upkeep, host, retention.keys)
        tls = self._config.delivery.tls
        policies = sts_policies.StsPolicyDuty(
            StsPolicies(self._link),
            BrokenTlsHosts(self._link, tls.remember, tls.minimum),
            TlsReports(self._link),
            lambda: self._connector.security.fetcher,
        )
        stored = DatabaseClock(self._link, clock.STEP, self._config.process.lease)
        steps = clock.ClockDuty(stored, self._registry.wake)
        dane = partial(dane_check.check_dane, self._connector, lambda: self._config)
        return {
            "requests": RegularDuty(requests.EVERY, answer, schema, self._turns),
            "rules": RegularDuty(requests.RULES_EVERY, rules, schema, self._turns),
            "final leases": RegularDuty(final_leases.EVERY, final.settle, schema, self._turns),
            "attempts": RegularDuty(attempts.EVERY, log_days, schema),
            "transcripts": RegularDuty(transcripts.EVERY, dialogues, schema),
            "clock": RegularDuty(clock.EVERY, steps.look, schema),
            "orphans": RegularDuty(orphans.EVERY, bodies, schema),
            "keys": RegularDuty(keys.EVERY, submissions, schema),
            "TLS policies": RegularDuty(sts_policies.EVERY, policies.do, schema, self._turns),
            "reports": RegularDuty(reports.TIDY, self._reports.tidy, schema),
            "DANE": RegularDuty(dane_check.EVERY, dane, schema),
        }

    def _reload(self) -> None:
        try:
            config = self._reread()
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return
        for risk in config.signing.risks:
            log.warning("configuration", reason=risk)
        changed = [n for n in _FIXED if getattr(config, n) != getattr(self._config, n)]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.warning("configuration kept in part", problems=problems)
        self._config = config.model_copy(update={n: getattr(self._config, n) for n in _FIXED})
        self._tls.configure(self._config.delivery.tls)
        self._connector.configure(self._config.delivery)
        self._signers.configure(self._config.signing)
        for worker in self._delivering:
            worker.configure(self._config)
        log.info("configuration read again")
