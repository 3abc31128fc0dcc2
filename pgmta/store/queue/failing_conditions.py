"""Conditions that fail on some rows. The rows are found, named and marked, and stop nothing.

A statement has its conditions unchanged until one of them fails. Then the guard tries the rows, one
condition after the other, and marks failing rows in `queue.faults`. For a while the statement
passes over marked rows, and over rows that have not been tried (docs/decisions/conditions.md).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgmta.logs import get
from pgmta.postgres import faults
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.store.queries import bracketed, queries

RECENT_ROWS = 20_000
"""So many rows before the last tried one are tried again first: some may be committed late."""

ALL_ROWS = 1 << 62
"""If RECENT_ROWS was not enough, all rows are tried again."""

MAX_BATCH_ROWS = 5000
"""One statement tries so many."""

_PASSED_OVER_S = 60.0  # for marked rows; then the plain statement is tried
_MAX_NAMED_ROWS = 20  # in the log per minute, for each guard; the others are counted

_SQL = queries("failing_conditions")

log = get("conditions")


def about_a_row(error: psycopg.Error) -> bool:
    """Return whether a condition may have failed on the values of one row.

    A wrong statement did not, nor a server that refuses or is away. An error that is
    `about_statement` may be about a row too: casts to jsonpath or regconfig blame the statement.
    """
    return bool(error.sqlstate) and faults.about_row(error)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition and its owner, such as `rule spam` or `worker deliver`."""

    owner: str
    text: str

    @property
    def stored(self) -> bool:
        """Whether an operator may have stored it, so that it is judged before it is evaluated."""
        return self.owner.startswith("rule ")

    @property
    def key(self) -> str:
        """The key of the condition in `queue.faults`."""
        identity = f"{self.owner}\0{self.text}".encode()
        return hashlib.sha256(identity).hexdigest()[:12]


class Guard:
    """Marks rows on which conditions fail. `rows` is SQL and says which rows count."""

    def __init__(self, link: Link, rows: str) -> None:
        self._link = link
        self._sql = {name: _SQL[name].fill(rows=rows) for name in ("mark", "unmark")}
        self._until = 0.0
        # id of the last row that was tried, by the condition's key
        self._tried: dict[str, int] = {}
        self._locked: dict[
            str, list[int]
        ] = {}  # rows that fail and can't be marked now, by the condition's key
        self._reviewed: dict[str, int] = {}  # row id where the next review begins, by the key
        self._minute = 0.0
        self._named = 0

    async def prepare(self, conditions: Sequence[Condition]) -> bool:
        """Return whether statements pass over marked rows now; if so, try the rows that came since.

        When the time is over, remove marks of rows on which no condition fails any more. Raises
        StoreUnavailable.
        """
        if self.active:
            await self._advance(conditions)
        elif self._until:
            for condition in conditions:
                await self._review(condition)
            self._until = 0.0
        return self.active

    async def _review(self, condition: Condition) -> None:
        """Try the next marked rows again. The rows of other batches follow at the next review."""
        after = self._reviewed.get(condition.key, 0)
        params = {**self._params(condition), "after": after}
        ((last, marked),) = await self._link.run(self._sql["unmark"], params)
        self._reviewed[condition.key] = last if marked == MAX_BATCH_ROWS else 0

    @property
    def active(self) -> bool:
        """Whether the statement has to pass over marked rows now."""
        return time.monotonic() < self._until

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of statements that contain `skipping_marked`."""
        tried = {f"tried_{key}": last for key, last in self._tried.items()}
        return tried | {f"locked_{key}": Bigints(self._locked.get(key, ())) for key in self._tried}

    def skipping_marked(self, condition: Condition, *, failing: str, untried: str) -> str:
        """Return the condition for a statement with parameters; marked rows get a fixed value."""
        return (
            f"CASE WHEN faults ? '{condition.key}'"
            f" OR id = ANY (%(locked_{condition.key})b::bigint[]) THEN {failing}"
            f" WHEN id > %(tried_{condition.key})s THEN {untried}"
            f" ELSE {bracketed(condition.text)} END"
        )

    async def find(self, conditions: Sequence[Condition], again: int) -> None:
        """Mark rows on which a condition fails, from `again` rows before the last tried one on.

        From now on statements pass over marked rows, and over rows that another session has
        locked. Raises StoreUnavailable.
        """
        self._locked.clear()
        for condition in conditions:
            self._tried[condition.key] = max(0, self._tried.get(condition.key, 0) - again)
        await self._advance(conditions)
        self._until = time.monotonic() + _PASSED_OVER_S

    async def _advance(self, conditions: Sequence[Condition]) -> None:
        """Try the conditions on rows that came after the last tried one."""
        known = {condition.key for condition in conditions}
        self._tried = {key: last for key, last in self._tried.items() if key in known}
        for condition in conditions:
            tried = MAX_BATCH_ROWS
            while tried == MAX_BATCH_ROWS:
                last = self._tried.get(condition.key, 0)
                ((newest, tried, _), *found) = await self._link.run(
                    self._sql["mark"], {**self._params(condition), "after": last}
                )
                self._tried[condition.key] = newest or last
                marked = [row for row in found if row[1] is not None]
                locked = [row for row, message, _ in found if message is None]
                if locked:
                    self._until = time.monotonic() + _PASSED_OVER_S
                    self._locked.setdefault(condition.key, []).extend(locked)
                if marked:
                    self._until = time.monotonic() + _PASSED_OVER_S
                    self._tell(condition, marked)

    def _params(self, condition: Condition) -> dict[str, Any]:
        return {
            "key": condition.key,
            "owner": condition.owner,
            "condition": condition.text,
            "batch": MAX_BATCH_ROWS,
        }

    def _tell(self, condition: Condition, marked: list[tuple[Any, ...]]) -> None:
        now = time.monotonic()
        if now > self._minute + 60:
            self._minute, self._named = now, 0
        for row, message, error in marked[: max(0, _MAX_NAMED_ROWS - self._named)]:
            log.warning("a condition fails", condition=condition.owner, row=row, message=message,
                        reason=error)  # fmt: skip
        if self._named < _MAX_NAMED_ROWS < self._named + len(marked):
            log.warning("a condition fails on further rows", condition=condition.owner,
                        rows=len(marked) + self._named - _MAX_NAMED_ROWS,
                        hint="queue.faults is not null")  # fmt: skip
        self._named += len(marked)
