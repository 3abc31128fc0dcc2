"""The running workers, the rows that each one matches, and the rows that none does."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import errors as pg_errors

from pgmta.action import IS_ACTIVE
from pgmta.errors import PgmtaError
from pgmta.postgres import faults
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import queries
from pgmta.store.queue.conditions import rule_takes, takes
from pgmta.store.queue.failing_conditions import Condition
from pgmta.store.queue.reading import Fault, failing, fault, kept, reading
from pgmta.store.queue.refused import refused_now

_SQL = queries("overview")


class Overview:
    """Reads and rules. Methods raise psycopg.Error."""

    def __init__(self, db: OperatorConnection) -> None:
        self._db = db
        self.faults: list[Fault] = []

    async def workers(self) -> list[dict[str, Any]]:
        """Return the registered workers, dead ones too (`alive`).

        `takes` is the condition with the priority, None for every row.
        """
        entries = await self._db.rows(_SQL["workers"])
        for entry in entries:
            entry["takes"] = takes(entry["condition"], entry["action"], entry["priority"])
        return entries

    async def rules(self) -> list[dict[str, Any]]:
        """Return the standing rules.

        `takes` is the condition without the rows that were released from the rule. `held` is the
        number of rows that it holds. One with `slow_at` is set aside, and takes none.
        """
        rules = await self._db.rows(_SQL["rules"])
        for rule in rules:
            counts = rule["slow_at"] is None
            rule["takes"] = rule_takes(rule["id"], rule["condition"]) if counts else "false"
        return rules

    async def holding(self, where: str) -> dict[str, int | None]:
        """Return the rules that would hold rows again if those that match were released.

        The value is the number of rows of each, None if a condition fails on a row.
        """
        rows = await self._db.rows(_SQL["holding"], {"where": where})
        return {row["name"]: row["rows"] for row in rows}

    async def matches(
        self,
        conditions: list[str | None],
        deliver: list[int],
        rules: list[str],
        owners: list[str] | None = None,
    ) -> dict[str, Any]:
        """Count active rows for each condition, in one scan.

        Keys: `n0`, `due0`, `lag0` (seconds) … for each condition; `unmatched` for rows that neither
        a condition of `deliver` (indexes) nor a standing rule takes; `overlap` for rows that more
        than one of `deliver` takes. Afterwards `faults` has the conditions that fail on rows,
        and rows that are held for it; `owners` names the owners of conditions and rules, in order.
        """
        own = len(conditions)
        every = [condition or "true" for condition in (*conditions, *rules)]
        owners = owners or ["the condition"] * len(every)
        counts, found = await reading(
            self._db,
            [Condition(*pair) for pair in zip(owners, every, strict=True)],
            IS_ACTIVE,
            lambda tests: self._matches(tests[:own], deliver, tests[own:]),
            [False] * len(conditions) + [True] * len(rules),
            standing=True,
        )
        self.faults = [*dict.fromkeys(found), *await kept(self._db)]
        return counts

    async def _matches(
        self, tests: list[str], deliver: list[int], rules: list[str]
    ) -> dict[str, Any]:
        columns = ["count(*) AS rows"]
        for number, test in enumerate(tests):
            due = f"{test} AND next_attempt <= now() AND status <> 'SENDING'"
            columns += [
                f"count(*) FILTER (WHERE {test}) AS n{number}",
                f"count(*) FILTER (WHERE {due}) AS due{number}",
                "extract(epoch FROM max(now() - greatest(next_attempt, 'epoch'))"
                f" FILTER (WHERE {due}))::float8 AS lag{number}",
            ]
        taken = [f"({tests[n]} IS TRUE)::int" for n in deliver]
        ruled = [f"({rule} IS TRUE)::int" for rule in rules]
        columns.append(
            f"count(*) FILTER (WHERE {' + '.join([*taken, *ruled, '0'])} = 0) AS unmatched"
        )
        columns.append(f"count(*) FILTER (WHERE {' + '.join([*taken, '0'])} > 1) AS overlap")
        query = _SQL["matches"].fill(columns=",\n    ".join(columns))
        row = await self._db.row(query, {})
        return row or {}

    async def verdict(self, message_id: int, conditions: list[str]) -> list[dict[int, str]]:
        """Return for each condition the rows of a message that it matches, by their ids.

        The value is empty, or the error if the condition fails on the row. A refused condition has
        no rows.
        """
        found: list[dict[int, str]] = []
        for condition in conditions:
            params = {"id": message_id, "condition": condition}
            try:
                rows = await self._db.rows(_SQL["verdict"], params)
            except psycopg.Error as error:
                if not faults.about_statement(error):
                    raise
                rows = []
            found.append({row["id"]: row["error"] or "" for row in rows})
        return found

    async def refused(self, conditions: dict[str, str]) -> list[Fault]:
        """Return those of the conditions, given by owner, that PostgreSQL refuses."""
        named = [Condition(owner, text) for owner, text in conditions.items()]
        return [Fault(c.owner, 0, 0, 0, e) for c, e in (await refused_now(self._db, named)).items()]

    async def failing(
        self, owner: str, condition: str, seconds: float
    ) -> tuple[Fault | None, int, bool]:
        """Try a condition on the rows that wait, for about `seconds` seconds.

        Returns the failures, the number of rows tried, and whether these are all rows.
        """
        until = time.monotonic() + seconds
        await self._db.execute(f"SET statement_timeout = {int(seconds * 1000)}")
        found: dict[int, tuple[int, str]] = {}
        tried = 0
        whole = True
        try:
            found, tried, whole = await failing(self._db, condition, IS_ACTIVE, until)
        except pg_errors.QueryCanceled:
            whole = False
        finally:
            await self._db.execute("RESET statement_timeout")
        return (fault(owner, found) if found else None), tried, whole

    async def add_rule(self, rule: dict[str, Any], who: str) -> None:
        """Add a standing rule. Raises PgmtaError if the name is taken."""
        async with self._db.transaction():
            try:
                await self._db.execute(_SQL["rule"], {**rule, "who": who})
            except pg_errors.UniqueViolation:
                raise PgmtaError(f"there is a rule {rule['name']!r} already") from None
            details = {key: value for key, value in rule.items() if value is not None}
            await self._db.audit(who, "rule add", rule["condition"], details)

    async def remove_rule(self, name: str, who: str) -> tuple[int, int] | None:
        """Remove a standing rule; return its number and how many rows it leaves on hold.

        None if no rule has that name.
        """
        async with self._db.transaction():
            row = await self._db.row(_SQL["unrule"], {"name": name})
            if row:
                await self._db.audit(who, "rule remove", row["condition"], {"name": name})
        return (row["id"], row["held"]) if row else None
