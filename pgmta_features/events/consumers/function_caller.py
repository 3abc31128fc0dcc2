"""Functions of applications are called with events, exactly once.

A function is called in a session of the application's own login, and the cursor moves in the same
transaction. So its code has the rights of the application wherever it runs: in the function, in a
deferred trigger, or in a cursor that PostgreSQL reads at the commit.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from datetime import datetime

import psycopg
from psycopg import IsolationLevel

from pgmta.errors import StoreUnavailable
from pgmta.logs import get
from pgmta.metrics.series import MoreFigures, Series, Values
from pgmta.postgres import faults
from pgmta.store.admin.upkeep import Look
from pgmta.store.queries import feature_queries
from pgmta_features.events.news import event_news
from queued.process.queued_process import QueuedProcess
from queued.upkeep.duty import repeat

log = get("events")

_MAX_EVENTS = 100  # of a call
_TIME_LIMIT_S = 10.0  # of a call, and of its commit
# grace on top: a function can outlast statement_timeout, then the client gives up
_LATE_S = 5.0
# A function can catch the cancel, and a session that nobody waits for would keep its row and its
# snapshot. PostgreSQL looks for the client so often, and nothing catches what ends it then.
_LOOK_FOR_CLIENT_S = 1.0
_ENDED_S = 3.0  # by then it has ended
_LOOK_INTERVAL_S = 1.0  # for missed notifications, and for pauses that are over
_IDLE_S = 30.0  # after which the session of a function is closed
_MAX_TRIES = 3  # of events together; then they go one by one, to find the one that fails
_CANCELED = "57014"
_NO_CONNECTION = "08000"

_SQL = feature_queries("events")
BEGIN = f"""
SELECT pg_catalog.set_config('statement_timeout', '{_TIME_LIMIT_S:.0f}s', true),
    pg_catalog.set_config('client_connection_check_interval', '{_LOOK_FOR_CLIENT_S:.0f}s', true),
    pg_catalog.now()
""".encode()
"""The first statement of a call."""
_CALL = """
SELECT jsonb_array_length(t.events), {function}(t.events)
FROM (SELECT pgmta.events_take(%s, %s) AS events OFFSET 0) AS t WHERE t.events IS NOT NULL
"""

FUNCTIONS = Look(_SQL["functions"])
"""Whether a function is called with events."""

_EVENTS = "pgmta_queued_event_function_events_total"
_FAILURES = "pgmta_queued_event_function_failures_total"
SERIES = (
    Series(_EVENTS, "counter", "Events that a function of an application took.", ("function",)),
    Series(_FAILURES, "counter", "Calls of a function with events that failed.", ("function",)),
)
"""What the calls of a process have done."""


class FunctionCaller:
    """Calls the functions for one process, each in a task of its own.

    Of several processes the one whose turn it is calls. A second one does no harm: it finds the
    events taken.
    """

    def __init__(self, process: QueuedProcess) -> None:
        self._process = process
        self._news = event_news(process.resources)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._single_calls_left: dict[str, int] = {}
        self._began: dict[str, datetime] = {}  # the last call, by the database's clock
        self._events = Counter[str]()
        self._failures = Counter[str]()
        process.more_figures.append(MoreFigures(SERIES, self._values))

    def _values(self) -> Values:
        counts = {_EVENTS: self._events, _FAILURES: self._failures}
        return {
            series: {(name,): float(number) for name, number in found.items()}
            for series, found in counts.items()
        }

    async def round(self) -> None:
        """Begin to call the functions for which there are events, and wait for more events.

        Raises StoreUnavailable, psycopg.Error.
        """
        self._process.schema.require()
        if not await self._process.tasks_due.may(FUNCTIONS):
            await asyncio.sleep(_LOOK_INTERVAL_S)
            return
        mark = self._news.mark()
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        if self._in_turn():
            for name, login in await self._process.link.run(_SQL["due_functions"]):
                if name not in self._tasks:
                    self._tasks[name] = asyncio.create_task(self._call(name, login))
        await self._news.wait(mark, _LOOK_INTERVAL_S)

    def _in_turn(self) -> bool:
        return self._process.due_in(_LOOK_INTERVAL_S) <= _LOOK_INTERVAL_S

    async def close(self) -> None:
        """End the calls; what was not committed is called again by another process."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _call(self, name: str, login: str) -> None:
        """Call a function until it fails, or there was nothing for it for a while."""
        try:
            async with asyncio.timeout(_TIME_LIMIT_S):
                session = await self._process.resources.connect_as(login, "event function")
        except (psycopg.Error, TimeoutError) as error:
            await self._failed(name, error, _NO_CONNECTION)
            return
        try:
            await session.set_isolation_level(IsolationLevel.READ_COMMITTED)
            used_at = time.monotonic()
            while time.monotonic() < used_at + _IDLE_S:
                mark = self._news.mark()
                if await self._take(session, name):
                    used_at = time.monotonic()
                elif not self._in_turn():
                    return
                else:
                    await self._news.wait(mark, _LOOK_INTERVAL_S)
        except TimeoutError as error:
            await session.close()
            await asyncio.sleep(_ENDED_S)
            await self._failed(name, error, _CANCELED)
        except psycopg.Error as error:
            await self._failed(name, error, _NO_CONNECTION)
        finally:
            await session.close()

    async def _take(self, session: psycopg.AsyncConnection, name: str) -> bool:
        """Call it once, and return whether there were events."""
        single = self._single_calls_left.get(name, 0)
        async with asyncio.timeout(_TIME_LIMIT_S + _LATE_S), session.transaction():
            ((*_, self._began[name]),) = await (await session.execute(BEGIN)).fetchall()
            # the name was quoted by the database
            query = _CALL.format(function=name).encode()
            cursor = await session.execute(query, (name, 1 if single else _MAX_EVENTS))
            found = await cursor.fetchone()
        self._single_calls_left[name] = max(single - 1, 0)
        if found:
            self._events[name] += found[0]
        return found is not None

    async def _failed(self, name: str, error: Exception, state: str) -> None:
        if isinstance(error, psycopg.Error):
            state, reason = error.sqlstate or state, faults.one_line(error)
        else:
            reason = f"no answer within {_TIME_LIMIT_S + _LATE_S:.0f} s"
        alone = self._single_calls_left.get(name, 0) > 0
        fields = {
            "name": name, "state": state, "reason": reason[:1000], "alone": alone,
            "began": self._began.get(name),
        }  # fmt: skip
        try:
            ((failures,),) = await self._process.link.run(_SQL["function_failed"], fields)
            if failures is None:  # it subscribes no more
                return
            if not alone and failures >= _MAX_TRIES:
                self._single_calls_left[name] = _MAX_EVENTS
        except (StoreUnavailable, psycopg.Error) as away:
            log.warning("upkeep failed", duty="event functions", reason=faults.one_line(away))
            await asyncio.sleep(_LOOK_INTERVAL_S)
        self._failures[name] += 1
        log.warning("function failed with events", function=name, reason=reason)


def call_functions(process: QueuedProcess) -> Coroutine[None, None, None]:
    """Call functions until cancelled."""
    caller = FunctionCaller(process)

    async def call() -> None:
        try:
            await repeat("event functions", caller.round, lambda: 0.0)
        finally:
            await caller.close()

    return call()
