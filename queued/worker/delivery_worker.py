"""A worker with the action deliver, put together: claims, leases, destinations, settlements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres.link import Link
from pgmta.service import Part
from pgmta.store.queue.claim import SESSION, Claims
from pgmta.store.queue.contents import Contents
from pgmta.store.queue.costly import CLAIMING_SETTINGS
from pgmta.store.queue.lease import RowLeases
from pgmta.store.queue.returned import ReturnedLog
from pgmta.store.queue.settle import Settlements
from pgmta.store.records.traces import Trace
from pgmta.tracing import tracing
from queued.config import QueuedConfig, Worker
from queued.delivery.transport.result import NOT_BEGUN
from queued.outgoing.stage import Means
from queued.process.queued_process import QueuedProcess, WorkerMail
from queued.worker.attempt_recorder import AttemptRecorder
from queued.worker.claim_exclusions import MAX_URGENT
from queued.worker.claim_loop import ClaimContext, Claimer, ClaimLoop
from queued.worker.dispatch import Dispatch
from queued.worker.leases import Leases
from queued.worker.settler import Settler
from queued.worker.spans import Spans
from queued.worker.turns import TurnSchedule
from queued.worker.urgent import UrgentLoop

_WAKE_TIMEOUT_S = 2.0  # to wake other workers for rows that were handed back
_CLAIM_END_TIMEOUT_S = 3.0  # for the answer to a claim that is under way when the worker stops
# An operator's transaction may lock a row for hours: the other outcomes do not wait for it. After
# `deadlock_timeout` (1 s) or less, PostgreSQL would report each deadlock as a lock timeout.
_LINK_SETTINGS = {name: {"lock_timeout": "1500ms"} for name in ("settle", "returned")}
_LINK_SETTINGS |= dict.fromkeys(("claim", "urgent"), CLAIMING_SETTINGS)

log = get("worker")


class DeliveryWorker:
    """One worker with the action deliver; its leases carry the name `owner`."""

    def __init__(self, process: QueuedProcess, worker: Worker) -> None:
        config, schema = process.config, process.schema
        owner, where = f"{worker.name}@{process.name}", process.where(worker)
        self.name = worker.name
        self.schedule = TurnSchedule()
        self._drain = config.process.drain
        self._registry = process.registry
        self._slots = worker.concurrency

        def link(name: str) -> Link:
            return process.resources.link(
                f"{worker.name} {name}", SESSION | _LINK_SETTINGS.get(name, {})
            )

        lease, poll = config.process.lease, config.process.poll
        self._poll = poll
        level = -1 if config.urgent.priority is None else config.urgent.priority
        self._leases = Leases(RowLeases(link("renew"), owner, lease))
        tracer = tracing()
        spans = Spans(tracer, worker.name) if tracer else None
        self._settler = Settler(
            Settlements(link("settle"), owner), self._leases, self._deferred, process.reported.set,
            spans, process.figures,
        )  # fmt: skip
        self._recorder = AttemptRecorder(lines=config.log.attempts)
        means = Means(
            contents=Contents(link("content")),
            transports=process.transports,
            returned=ReturnedLog(link("returned")),
            signers=process.signers,
            gate=process.gate,
            clock=process.clock,
            link=link,
        )
        self._dispatch = Dispatch(
            config, means, self._leases, self._settler, process.reclaimer, self._recorder, spans
        )
        timed = self._dispatch.stages.context.timed
        timed.most, timed.wake = worker.concurrency // 2, self._wake_loops
        looks = link("looks")  # connects only while dead rows make claims dear
        claims = Claims(
            link("claim"),
            owner,
            lease,
            where,
            worker.priority,
            urgent=level,
            schema=schema,
            costly=process.costly,
            clock=process.clock,
            looks=looks,
        )
        process.mail.append(
            WorkerMail(worker.name, self._leases.items, self._dispatch.find_destinations)
        )
        context = ClaimContext(
            worker.name, poll, self._leases, self._dispatch, self.schedule, spans=spans,
            gate=process.gate,
            figures=process.figures,
        )  # fmt: skip
        self.loops: list[Claimer] = [ClaimLoop(worker, context, claims)]
        """The loops that wake for mail and claim it: the ordinary one and that of urgent rows."""
        if slots := config.urgent.slots(worker.concurrency):
            # with an owner of its own: after an outage no loop may give back rows of the other
            urgent = Claims(
                link("urgent"), f"{owner}:urgent", lease, where, worker.priority,
                urgent=level, each=MAX_URGENT, schema=schema, costly=process.costly,
                clock=process.clock, looks=looks,
            )  # fmt: skip
            self.loops.append(UrgentLoop(slots, claims, context, urgent))
        # claims have to find rows that were handed back, and keep their time
        self._settler.returned += [loop.claims.give_back for loop in self.loops]
        for loop in self.loops:
            loop.claims.take_turns(self.schedule.turn)
        self._leases.owners += [self._settler.rows, *(loop.rows for loop in self.loops)]
        self._leases.lost = self._dispatch.end_lost
        self._set_claims(config)

    @property
    def handled(self) -> int:
        """Rows settled since the start."""
        return self._leases.dropped

    @property
    def slots(self) -> int:
        """Rows that it may lease at a time."""
        return self._slots

    @property
    def leased(self) -> int:
        """Rows that it has leased."""
        return len(self._leases.items)

    @property
    def unsettled(self) -> int:
        """Outcomes that may not be durable yet."""
        return len(self._settler.open)

    @property
    def destinations(self) -> int:
        """Destinations with mail or connections."""
        return self._dispatch.number

    def _wake_loops(self) -> None:
        for loop in self.loops:
            loop.wake()

    def _deferred(self, delay: float) -> None:
        """Wake the loops when a row is due again before the next poll."""
        if delay < self._poll:
            for loop in self.loops:
                loop.due.start(delay)

    def parts(self) -> dict[str, Part]:
        """Return the work that runs until it is cancelled; `drain` stops the loops themselves."""
        return {
            f"leases of {self.name}": self._leases.keep,
            f"settlements of {self.name}": self._settler.run,
        }

    def configure(self, config: QueuedConfig) -> None:
        """Use new routes, limits and intervals from now on."""
        self._dispatch.configure(config)
        self._set_claims(config)

    def set_traces(self, traces: Sequence[Trace]) -> None:
        """Use these traces from now on."""
        self._recorder.set_traces(traces)

    def _set_claims(self, config: QueuedConfig) -> None:
        for loop in self.loops:
            loop.inline = config.delivery.inline
            loop.claims.label(self._dispatch.labelled, self._dispatch.route_limits)

    async def drain(self, running: Sequence[asyncio.Task[None]]) -> None:
        """Stop claiming, let deliveries end within `process.drain`, and write every outcome.

        `running` are the tasks of the loops. Other workers are woken when the rows that had not
        begun are in the queue again.
        """
        log.info("draining", worker=self.name, rows=len(self._leases.items))
        for loop in self.loops:
            loop.stop()
        _, late = await asyncio.wait(running, timeout=_CLAIM_END_TIMEOUT_S)
        if late:
            for loop in self.loops:
                loop.give_up()
            _, late = await asyncio.wait(late, timeout=_CLAIM_END_TIMEOUT_S)
            for task in late:  # it asks when the next row is due, and waits for a lock
                task.cancel()
            await asyncio.wait(running)
        self._dispatch.drain()
        waking = asyncio.create_task(self._wake())
        try:
            async with asyncio.timeout(self._drain):
                await self._dispatch.wait()
        except TimeoutError:
            log.warning("dropping connections", worker=self.name, rows=len(self._leases.items))
            await self._dispatch.abort()
        # for example rows of a claim that was cancelled before they were dispatched
        self._dispatch.end_unowned([*self._leases.items.values()], NOT_BEGUN)
        try:
            async with asyncio.timeout(max(self._drain, 5.0)):
                await self._settler.flush()
        except TimeoutError:
            self._name_unwritten()
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAKE_TIMEOUT_S):
                await waking

    def _name_unwritten(self) -> None:
        """Log every outcome that is lost: the log of attempts will call it unknown."""
        log.error("outcomes not written: the database is away", rows=len(self._leases.items))
        for outcome in self._settler.open:
            item = outcome.item
            log.warning("outcome not written", row=item.id, message=item.message_id,
                        recipient=item.recipient, outcome=outcome.event.value,
                        reply=str(outcome.reply))  # fmt: skip

    async def _wake(self) -> None:
        await self._settler.flush()
        with suppress(StoreUnavailable, psycopg.Error):
            await self._registry.wake()
