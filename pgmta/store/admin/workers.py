"""The workers that run, and the standing rules that they bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from pgmta.postgres import faults
from pgmta.postgres.binary import Bigints
from pgmta.postgres.link import Link
from pgmta.postgres.notify import NOTIFY
from pgmta.store.queries import queries
from pgmta.store.queue.conditions import rule_takes, takes

_SQL = queries("workers")
_TESTED_ROWS = 100  # the oldest of each priority


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """A worker as the table `workers` has it."""

    name: str
    action: str
    condition: str | None
    reach: str
    priority: int = 9


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The place of a worker among all that claim the same rows, and the database's clock."""

    before: int
    number: int
    clock: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A standing rule: rows that match it are held, and never claimed for delivery."""

    name: str
    action: str
    condition: str
    reason: str
    quarantine: str | None
    release_after: float | None
    number: int = 0
    """Of the database, 0 for a rule that a worker is about to bring."""


class Registry:
    """The entries of one process, whose name is `owner`.

    Conditions are evaluated over the connection `limited`, if there is one.
    """

    def __init__(self, link: Link, owner: str, limited: Link | None = None) -> None:
        self._link = link
        self._limited = limited or link
        self._owner = owner
        self._judged: dict[str, bool] = {}  # whether a rule may be evaluated, by its text

    async def register(self, entries: list[WorkerEntry], rules: list[Rule]) -> None:
        """Announce the workers and their rules. Raises StoreUnavailable."""
        for rule in rules:
            await self._link.run(_SQL["rule"], {**_fields(rule), "who": self._owner})
        for entry in entries:
            await self._link.run(_SQL["register"], {**_fields(entry), "owner": self._owner})

    async def beat(self, rows_of: dict[str, tuple[int, int | None]]) -> bool:
        """Say that the process lives; return False if its entries have been removed.

        `rows_of` has for each worker the rows that it has done, and those that it has leased now;
        None: it leases none.
        """
        names = list(rows_of)
        counts = {
            "handled": [rows_of[name][0] for name in names],
            "in_flight": [rows_of[name][1] for name in names],
        }
        rows = await self._link.run(_SQL["beat"], {"owner": self._owner, "names": names, **counts})
        return len(rows) == len(names)

    async def places(self) -> dict[str, WorkerPlace]:
        """Return the place of each delivering worker of this process, by name."""
        rows = await self._link.run(_SQL["places"], {"owner": self._owner})
        return {row[0]: WorkerPlace(*row[1:]) for row in rows}

    async def untaken(self) -> list[tuple[int, int]]:
        """Return message id and priority of rows that no worker takes, of the oldest due rows.

        The list is empty if it is another process that has to ask. Raises StoreUnavailable.
        """
        found = await self._link.run(_SQL["takers"], {"owner": self._owner})
        if not found:
            return []
        tests = [
            (kind, rule_takes(number, text) if kind == "rule" else takes(text, kind, level))
            for kind, text, level, number in found
            if kind != "rule" or await self._may_evaluate(text)
        ]
        overdue = await self._link.run(_SQL["overdue"], {"each": _TESTED_ROWS})
        waiting = {row: (message, priority) for row, message, priority in overdue}
        for action, test in tests:
            if test is None:
                return []
            try:
                hits = await self._limited.run(
                    _SQL["tested"], {"condition": test, "ids": Bigints(waiting)}
                )
            except psycopg.Error as error:
                if not faults.about_statement(error):
                    raise
                continue
            for row, fails in hits:
                if action == "rule" or not fails:  # a rule holds what it fails on
                    waiting.pop(row)
        return list(waiting.values())

    async def leave(self) -> None:
        """Remove the entries; rules stay. Raises StoreUnavailable."""
        await self._link.run(_SQL["leave"], {"owner": self._owner})

    async def wake(self) -> None:
        """Wake the other workers. Raises StoreUnavailable."""
        await self._link.run(NOTIFY)

    async def operator_rules(self) -> list[Rule]:
        """Return the standing rules of operators, without those that may not be evaluated."""
        rules = [Rule(*row) for row in await self._link.run(_SQL["rules"])]
        texts = {rule.condition for rule in rules}
        self._judged = {text: may for text, may in self._judged.items() if text in texts}
        return [rule for rule in rules if await self._may_evaluate(rule.condition)]

    async def _may_evaluate(self, condition: str) -> bool:
        if condition not in self._judged:
            ((fault,),) = await self._link.run(_SQL["judge"], {"condition": condition})
            self._judged[condition] = fault is None
        return self._judged[condition]


def _fields(entry: WorkerEntry | Rule) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}
