"""Changes of many rows by a condition, in batches that each commit: docs/decisions/changes.md.

Operators (queuectl) and workers (queued) choose rows each in their way. The change itself is
the function queue_change_rows of the database. The SQL functions for operators call it as well.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from pgmta.action import Action
from pgmta.errors import Blocked, PgmtaError
from pgmta.postgres import faults
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.postgres.notify import NOTIFY
from pgmta.postgres.operator import LOCK_TIMEOUT_S
from pgmta.store.changes.row_change import RowChange
from pgmta.store.changes.throttle import ChangePace
from pgmta.store.queries import Statement, bracketed, queries
from pgmta.store.queue.conditions import rule_holder, unless_exempt
from pgmta.store.queue.failing_conditions import (
    ALL_ROWS,
    RECENT_ROWS,
    Condition,
    Guard,
    about_a_row,
)

DEFAULT_BATCH_ROWS = 1000

_ROWS_PER_PAGE = 100_000  # that one statement finds for the batches of a command
_MAX_TRIES = 20  # of a batch that lost a race, and of batches on which the condition fails
_ROWS_PER_ROUND = 100_000  # a worker's change counts as so large, to set its pace

_SQL = queries("change")


class _Batch(NamedTuple):
    """Rows found and changed, and whether more may be left."""

    found: int
    changed: int
    more: bool


async def _batches(
    step: Callable[[], Awaitable[_Batch]], size: int, throttle: ChangePace
) -> AsyncIterator[int]:
    """Do batch after batch until none is left, pause in between, yield each one's changed rows."""
    while True:
        began = time.monotonic()
        batch = await step()
        worked = time.monotonic() - began
        yield batch.changed
        if not batch.more:
            return
        if batch.found >= size:
            await asyncio.sleep(throttle.pause(worked))


class OperatorChanges:
    """Runs changes of operators over a separate connection, and notes them in the audit table."""

    def __init__(self, uri: str) -> None:
        # so that a session which locks rows for hours gets named, and Ctrl-C need not wait for it
        limit = {"lock_timeout": f"{LOCK_TIMEOUT_S * 1000:.0f}ms"}
        self._link = Link(uri, "queuectl", limit)

    async def close(self) -> None:
        """End the connection."""
        await self._link.close()

    async def require_rights(self) -> None:
        """Raise PgmtaError if the role may not change rows, also if there is nothing to change."""
        ((role, may),) = await self._link.run(_SQL["may_change"])
        if not may:
            raise PgmtaError(
                f"the role {role} may not change rows: take a file whose login has pgmta_operator"
            )

    async def batches(
        self, change: RowChange, size: int = DEFAULT_BATCH_ROWS, about: int = 0
    ) -> AsyncIterator[int]:
        """Change batch after batch, each a commit, and yield the rows that each one changed.

        A row is changed only if the condition still holds for it. A row on which the condition
        fails is taken by a hold and left by the other actions. Between batches the change pauses,
        because the mail that flows comes first: four times as long as it works, if `about`
        rows still end within 18 s; otherwise as long as it works.
        Raises Blocked if another session locks a row for too long; StoreUnavailable, psycopg.Error.
        """
        details = json.dumps(change.details())
        begun = {"who": change.who, "action": change.action, "condition": change.where}
        ((audit,),) = await self._link.run(_SQL["begin"], {**begun, "details": details})
        walk = _Walk(self._link, change, audit, size)
        async for rows in _batches(walk.step, size, ChangePace(about / size)):
            yield rows
        await self._link.run(_SQL["finish"], {"audit": audit})
        if change.rows.releases:
            await self._link.run(NOTIFY)


class _Walk:
    """The way of one operator's change through the queue, by the ids of the rows."""

    def __init__(self, link: Link, change: RowChange, audit: int, size: int) -> None:
        self._link = link
        self._change = change
        self._size = size
        self._params = {"action": change.action, "who": change.who, "audit": audit}
        self._after = 0
        self._ids: list[int] = []  # ids of the rows of the next batches
        self._failures = 0

    async def step(self) -> _Batch:
        """Do the next batch, row by row if the condition has failed before."""
        while True:
            try:
                return await (self._guarded() if self._failures else self._plain())
            except psycopg.Error as error:
                self._failures += 1
                self._ids = []
                if faults.locked(error):
                    # who has a row can't be asked when the statement waits no more
                    hint = "another transaction has locked a row: look into pg_stat_activity"
                    raise Blocked(f"{faults.one_line(error)}: {hint}") from error
                if not about_a_row(error) or self._failures > _MAX_TRIES:
                    raise

    async def _plain(self) -> _Batch:
        where = bracketed(self._change.where)
        if not self._ids:
            query = _SQL["matching"].fill(takes=self._change.rows.takes).fill(where=where)
            found = await self._link.run(query, {"after": self._after, "page": _ROWS_PER_PAGE})
            self._ids = [row for (row,) in found]
        ids, self._ids = self._ids[: self._size], self._ids[self._size :]
        if not ids:
            return _Batch(0, 0, False)
        details = json.dumps(self._change.details())
        changed = await self._run(where, {"ids": Bigints(ids), "details": details})
        self._after = ids[-1]
        return _Batch(len(ids), changed, True)

    async def _guarded(self) -> _Batch:
        """Try the condition on each row of the next batch before rows are changed."""
        change, size = self._change, self._size
        page = _SQL["page"].fill(takes=change.rows.takes)
        found = await self._link.run(page, {"after": self._after, "batch": size})
        ids = [row for (row,) in found]
        params = {"condition": change.where, "ids": Bigints(ids)}
        tried = await self._link.run(_SQL["tried"], params)
        errors = {str(row): error for row, error in tried if error}
        reason = f"{change.reason}: the condition fails on this row: "
        reasons = {row: reason + error for row, error in errors.items()}
        failing = "true" if change.rows.standing else "false"
        where = f"CASE WHEN %(errors)s::jsonb ? id::text THEN {failing}"
        where += f" ELSE {bracketed(change.where)} END"
        params = {
            "ids": Bigints(row for row, _ in tried),
            "errors": json.dumps(errors),
            "details": json.dumps({**change.details(), "reasons": reasons}),
        }
        changed = await self._run(where, params)
        self._after = ids[-1] if ids else self._after
        return _Batch(len(ids), changed, bool(ids))

    async def _run(self, where: str, params: dict[str, Any]) -> int:
        query = _SQL["command"].fill(takes=self._change.rows.takes)
        params = {**self._params, **params}
        ((changed,),) = await self._link.run(query.fill(where=where), params, tries=_MAX_TRIES)
        return int(changed)


class WorkerChanges:
    """Runs changes of workers and standing rules, which are repeated for ever.

    A worker leaves rows in flight, rows that are locked, and rows that have the change already. It
    leaves held rows and requests to delete to the operators: it holds none of them.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._guards: dict[tuple[str, Condition], Guard] = {}  # for conditions that have failed

    async def batches(
        self, change: RowChange, size: int = DEFAULT_BATCH_ROWS
    ) -> AsyncIterator[int]:
        """Do batch after batch until none is left, and yield the rows that each one changed.

        A row on which the condition fails is held by a hold and left by the other actions; the log
        names it. Workers are woken for released rows. Raises StoreUnavailable, psycopg.Error.
        """
        if change.rule:
            found = await self._link.run(_SQL["standing"], {"rule": change.rule})
            if not found:
                return
            change = replace(change, holder=rule_holder(found[0][0]))
        if change.holder:
            change = replace(change, where=unless_exempt(change.holder, change.where))
        done = 0
        async for rows in _batches(
            lambda: self._step(change, size), size, ChangePace(_ROWS_PER_ROUND / size)
        ):
            done += rows
            yield rows
        if done and change.rows.releases:
            await self._link.run(NOTIFY)

    async def run(self, change: RowChange, size: int = DEFAULT_BATCH_ROWS) -> int:
        """Do batch after batch until none is left, and return the number of changed rows.

        Raises StoreUnavailable, psycopg.Error.
        """
        return sum([rows async for rows in self.batches(change, size)])

    async def _step(self, change: RowChange, size: int) -> _Batch:
        condition = Condition(change.owner, change.where)
        guard = self._guards.get((change.action, condition))
        for again in (RECENT_ROWS, ALL_ROWS, None):
            try:
                found, changed = await self._run(change, size, condition, guard)
                return _Batch(found, changed, found >= size)
            except psycopg.Error as error:
                if again is None or not (about_a_row(error) or faults.about_statement(error)):
                    raise
                guard = guard or Guard(self._link, change.rows.waiting)
                self._guards[change.action, condition] = guard
                await guard.find([condition], again)
        raise AssertionError

    async def _run(
        self, change: RowChange, size: int, condition: Condition, guard: Guard | None
    ) -> tuple[int, int]:
        details = change.details()
        params: dict[str, Any] = {"who": change.who, "older": change.older, "batch": size}
        where = bracketed(change.where)
        if guard and await guard.prepare([condition]):
            failing = "true" if change.rows.standing else "false"
            where = guard.skipping_marked(condition, failing=failing, untried="false")
            params |= guard.params
            details["fault"] = condition.key
        params["details"] = json.dumps(details)
        rows = change.rows
        if rows.statement:
            query = Statement(rows.statement.encode())
        elif change.action == Action.DELETE:
            query = _SQL["remove"]
        else:
            query, params["action"] = _SQL["repeat"], change.action
        takes = " AND ".join(filter(None, (rows.waiting, rows.repeated)))
        query = query.fill(found=_SQL["found"]).fill(takes=takes, where=where)
        ((found, changed),) = await self._link.run(query, params)
        return found, changed
