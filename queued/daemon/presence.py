"""Rows of this process in the database: its heartbeat, its workers and their standing rules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import psycopg

from pgmta.errors import LoginRefused, StoreUnavailable
from pgmta.service import Signals, first
from pgmta.store.admin.daemons import BEAT, Heartbeat
from pgmta.store.admin.workers import Entry, Registry, Rule
from pgmta.store.schema import Schema
from pgmta.waiting import Waiting
from queued.worker.observer import TraceWatch

_RETRY = 0.5  # seconds, while PostgreSQL is away at the start
_LEAVE = 2.0  # seconds


class Counter(Protocol):
    """Counts the rows of a worker."""

    @property
    def handled(self) -> int:
        """Rows done since the start."""


class Presence:
    """Announces the workers of a process, and says regularly that it lives."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        registry: Registry,
        schema: Schema,
        signals: Signals,
        entries: Sequence[Entry],
        rules: Sequence[Rule],
        counters: Mapping[str, Counter],
        traces: TraceWatch,
    ) -> None:
        self._heartbeat = heartbeat
        self._registry = registry
        self._schema = schema
        self._signals = signals
        self._entries = list(entries)
        self._rules = list(rules)
        self._counters = counters  # by the worker's name
        self._traces = traces
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
                if await first(self._signals.stop, timeout=_RETRY):
                    return False

    async def do(self) -> None:
        """Say that the process and its workers live. Raises StoreUnavailable, psycopg.Error."""
        try:
            await self._heartbeat.beat()
        except LoginRefused as error:
            self._waiting.tell(error)
            raise
        if self._leaving or self._schema.problem:
            return  # our turns go to others
        handled = {name: counter.handled for name, counter in self._counters.items()}
        if not await self._registry.beat(handled) and not self._leaving:
            await self.register()
        await self._traces.look()  # the last heartbeat says that the traces before it are known

    def pause(self) -> float:
        """Return the seconds between two heartbeats."""
        return BEAT

    async def leave(self) -> None:
        """Take the workers away, so that the others do not wait for their turns."""
        self._leaving = True
        try:
            async with asyncio.timeout(_LEAVE):
                await self._registry.leave()
        except (StoreUnavailable, psycopg.Error, TimeoutError):
            pass  # without heartbeats the entries expire

    async def end(self) -> None:
        """Say that the process ends, and close the connection of the heartbeat."""
        await self._heartbeat.leave()
