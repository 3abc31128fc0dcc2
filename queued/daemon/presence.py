"""Rows of this process in the database: its heartbeat, its workers and their standing rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg

from pgmta.daemon_role import QUEUED
from pgmta.errors import LoginRefused, StoreUnavailable
from pgmta.service import Signals, first
from pgmta.store.admin.daemons import HEARTBEAT_INTERVAL_S, Heartbeat
from pgmta.store.admin.workers import WorkerEntry
from pgmta.store.queue.conditions import partition_condition
from pgmta.waiting import Waiting
from queued.config import Worker
from queued.process.queued_process import QueuedProcess
from queued.worker.attempt_recorder import TraceWatch
from queued.worker.kinds import Runner
from queued.worker.row_worker import is_rule, rule

_RETRY_PAUSE_S = 0.5  # while PostgreSQL is away at the start
_LEAVE_TIMEOUT_S = 2.0


class Presence:
    """Announces the workers of a process, and says regularly that it lives."""

    def __init__(
        self,
        process: QueuedProcess,
        signals: Signals,
        workers: Sequence[Worker],
        runners: Sequence[Runner],
    ) -> None:
        self._heartbeat = Heartbeat(
            process.link, process.schema, process.name, QUEUED.name, process.host
        )
        self._registry = process.registry
        self._schema = process.schema
        self._signals = signals
        self._runners = runners
        where = {worker.name: process.where(worker) for worker in process.config.workers}
        self._entries = [
            WorkerEntry(
                w.name, w.action, where[w.name], partition_condition(where[w.name]), w.priority
            )
            for w in workers
        ]
        self._rules = [rule(w, where[w.name]) for w in process.config.workers if is_rule(w)]
        self._traces = TraceWatch(process.traces, [runner.set_traces for runner in runners])
        self._leaving = False
        self._waiting = Waiting("queued")

    async def register(self) -> bool:
        """Announce workers and rules before the first claim; return False if stopped before that.

        While PostgreSQL is away or has another schema, it is tried again.
        """
        while True:
            try:
                await self._heartbeat.beat()
                self._schema.require()
                await self._registry.register(self._entries, self._rules)
                self._waiting.over()
                return True
            except StoreUnavailable as error:
                self._waiting.tell(error)
                if await first(self._signals.stop, timeout=_RETRY_PAUSE_S):
                    return False

    async def do(self) -> None:
        """Say that the process and its workers live. Raises StoreUnavailable, psycopg.Error."""
        try:
            await self._heartbeat.beat()
        except LoginRefused as error:
            self._waiting.tell(error)
            raise
        if self._leaving or self._schema.problem:
            return  # other processes take our turns
        rows = {runner.name: (runner.handled, runner.leased) for runner in self._runners}
        if not await self._registry.beat(rows) and not self._leaving:
            await self.register()
        # A heartbeat later than a trace says that we know it (traces.sql), so it is read now.
        await self._traces.read_traces()

    async def look(self) -> None:
        """Look at schema and database. Raises StoreUnavailable, psycopg.Error."""
        await self._heartbeat.look()

    def pause(self) -> float:
        """Return the seconds between two heartbeats."""
        return HEARTBEAT_INTERVAL_S

    async def leave(self) -> None:
        """Take the workers away, so that the others do not wait for their turns."""
        self._leaving = True
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._registry.leave()
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            pass  # the entries of this process expire without heartbeats

    async def end(self) -> None:
        """Say that the process ends, and close the connection of the heartbeat."""
        await self._heartbeat.leave()
