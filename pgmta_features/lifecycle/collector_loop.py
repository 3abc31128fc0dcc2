"""A collector: it listens for tokens, and makes a batch of them when one is due."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg

from pgmta.compose.token import UnknownKey
from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.link_connection import LinkConnection
from pgmta_features.lifecycle.collections import CollectorStatements, TokenBatch
from pgmta_features.lifecycle.config import Collector
from pgmta_features.lifecycle.outputs import Output
from pgmta_features.lifecycle.timing import Timing

_MAX_POLL_INTERVAL_S = 1.0  # without a notification
_NOTIFIED_INTERVAL_S = 0.01  # between two looks after notifications
_EARLY_S = 0.01  # before the time of the budget: collect() makes the batch and waits for it
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0  # before a new connection
_CANCEL_MARGIN_S = 2.0  # to give up a statement before the claim of the collector ends
_ASIDE_S = 60.0  # in which a token rests that the database refuses
_SAID_S = 60.0  # in which a fault of a template is named once, though its tokens are tried again
_BUDGET_AGE_S = 60.0  # afterwards a budget is asked again: an operator may change it

OUTCOMES = ("collected", "refused", "expired", "set aside")
"""The outcomes of tokens for a collector."""

log = get("collector")

type Connect = Callable[[], Coroutine[Any, Any, LinkConnection]]
"""Opens a connection. Raises psycopg.Error, StoreUnavailable."""


class CollectorLoop:
    """Runs a collector until it is cancelled, over one connection that is made anew when it fails.

    It listens before it looks, and takes all that waits; afterwards `Timing` says when a batch is
    due, and the budget when it may be. Notifications are hints: it also looks every second, which
    shows that the connection lives. `worker` is the name of the process.

    If the database refuses a batch, its tokens are tried one by one, and the bad one rests.

    With `ends_unread` it ends once nobody reads its lines any more.
    """

    def __init__(
        self,
        collector: Collector,
        worker: str,
        connect: Connect,
        output: Output,
        *,
        ends_unread: bool = False,
    ) -> None:
        self._collector = collector
        self._connect = connect
        self._output = output
        self._ends_unread = ends_unread
        self._store = CollectorStatements(collector.name, worker, collector.limit)
        # the statement under way is given up within the time, and its connection closed 5 s later
        self._patience = max(collector.healthcheck - _CANCEL_MARGIN_S, collector.healthcheck / 2)
        self._poll = min(_MAX_POLL_INTERVAL_S, collector.healthcheck / 4)
        self._pause = _FIRST_PAUSE_S
        self._said: dict[str, float] = {}  # faults of templates, and when each was named
        self._log = log.bind(collector=collector.name)
        self.name = collector.name
        """As collections has it."""
        self.tokens = Counter[str]()
        """Tokens since the start, by outcome."""
        self.spent = False
        """Whether the sum of the month is used up."""
        self.batch_size = 0
        """Tokens of the last batch."""
        self.timeout = collector.timeout or 0.0
        """For how long new tokens wait for others, or for the budget, in seconds."""

    async def run(self) -> None:
        """Collect until cancelled. Raises BrokenPipeError, if it ends unread."""
        while True:
            try:
                await self._session()
            except (StoreUnavailable, psycopg.Error, OSError, UnknownKey) as error:
                if self._ends_unread and isinstance(error, BrokenPipeError):
                    raise
                pause = self._pause * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
                self._pause = min(2 * self._pause, _MAX_PAUSE_S)
                reason = faults.one_line(error)
                self._log.warning("connects again", reason=reason, seconds=round(pause, 2))
                await asyncio.sleep(pause)

    async def _session(self) -> None:
        """Work over one connection. Raises what `run` handles."""
        self._store.connection = connection = await self._connect()
        try:
            await self._within(self._store.listen(self._collector.channel))
            budget, key = self._collector.budget, self._collector.budget_key
            if budget and key:
                await self._within(self._store.set_budget(key, budget.pace, budget.month_most))
            await self._within(self._output.check(self._store))
            self._log.info("connected")
            await self._collect(connection)
        finally:
            self._store.connection = None
            await connection.close()

    async def _collect(self, connection: LinkConnection) -> None:
        timing = Timing(self._collector.limit, self._collector.timeout)
        drained = False
        paid = 0.0  # time of the monotonic clock before which the budget allows nothing
        singles = 0  # number of tokens that are still tried one by one
        left: list[int] = []  # tokens of which a batch got none, because others have locked them
        said: list[str] | None = []  # actions that the database knows; new keys may add some
        while True:
            actions = self._output.actions()
            if actions != said:
                await self._within(self._store.takes(actions, self._collector.budget_key))
                said = actions
            tokens = await self._within(self._store.waiting(actions))
            if not tokens:
                self._pause = _FIRST_PAUSE_S  # if tokens wait, only a batch shows that all is well
            elif tokens == left:
                await self._rest(connection, self._poll)
            left = []
            now = time.monotonic()
            timing.see(tokens, now)
            reason = timing.reason(now) if drained and not singles else "connect"
            if not (tokens and reason and now >= paid):
                singles = singles if tokens else 0
                drained = drained or self._drained(not tokens)
                until = max(timing.due, paid) - now
                await self._rest(connection, min(max(until, _NOTIFIED_INTERVAL_S), self._poll))
                continue
            limit = 1 if singles else self._collector.limit
            began = time.monotonic()
            try:
                batch = await self._within(self._output.put(self._store, reason, limit))
            except psycopg.Error as error:
                await self._judge(error)
                if singles:
                    self._log.error("set aside", token=tokens[0], reason=faults.one_line(error))
                    await self._within(self._store.set_aside(tokens[0], _ASIDE_S))
                    self.tokens["set aside"] += 1
                singles = singles - 1 if singles else self._collector.limit
                continue
            self._pause, singles = _FIRST_PAUSE_S, max(singles - 1, 0)
            self._note(batch, reason)
            now = time.monotonic()
            left = tokens if not batch.done and batch.wait is None else []
            if batch.done or left:
                timing.end(cost=now - began, full=batch.full, now=now)
            if batch.wait is not None:
                paid = now + min(batch.wait - _EARLY_S, _BUDGET_AGE_S)
            self.timeout = max(timing.timeout, batch.wait or 0.0)
            drained = drained or self._drained(batch.done > 0 and not batch.full)

    def _note(self, batch: TokenBatch, reason: str) -> None:
        """Count a batch, and say what became of it."""
        self.tokens["collected"] += batch.taken
        self.tokens["refused"] += len(batch.refused)
        self.tokens["expired"] += batch.expired
        self.batch_size = batch.done or self.batch_size
        if batch.taken or batch.refused:
            self._log.info("collected", tokens=batch.taken, reason=reason)
        for token, fault in batch.refused:
            self._log.warning("no mail", token=token, reason=fault)
        now = time.monotonic()
        self._said = {fault: at for fault, at in self._said.items() if now - at < _SAID_S}
        for number, fault in batch.aside:
            if fault not in self._said:
                self._said[fault] = now
                self._log.warning("tokens wait", tokens=number, reason=fault)
        if batch.expired:
            self._log.warning("tokens expired before their mail was made", tokens=batch.expired)
        if batch.spent and not self.spent:
            key, hours = self._collector.budget_key, round((batch.wait or 0.0) / 3600, 1)
            self._log.warning("the sum of the month is used up", budget=key, hours=hours)
        self.spent = batch.spent

    def _drained(self, done: bool) -> bool:
        if done:
            self._log.info("waits for tokens")
        return done

    async def _judge(self, error: psycopg.Error) -> None:
        """Return if a token is the cause of an error; raise the error if it concerns all of them.

        Raises also what a check of the templates raises.
        """
        if faults.outage(error) or faults.lost_race(error):
            raise error
        await self._within(self._output.check(self._store))

    async def _rest(self, connection: LinkConnection, seconds: float) -> None:
        """Wait for a notification, for at most `seconds`."""
        began = time.monotonic()
        async for _ in connection.notifies(timeout=seconds, stop_after=1):
            pass
        await asyncio.sleep(max(0.0, began + _NOTIFIED_INTERVAL_S - time.monotonic()))

    async def _within[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a statement. Raises StoreUnavailable if no answer comes in time."""
        try:
            async with asyncio.timeout(self._patience):
                return await work
        except TimeoutError:
            raise StoreUnavailable("PostgreSQL gives no answer") from None
