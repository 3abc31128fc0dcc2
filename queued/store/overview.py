"""Who runs, which rows each worker matches, and which nobody does."""

from __future__ import annotations

import json
from typing import Any

from psycopg import errors as pg_errors

from queued.db import connect_operator
from queued.errors import PosternError
from queued.store.conditions import takes
from queued.store.queries import escaped, queries

_SQL = queries("overview")


class Overview:
    """Reads and rules, over a connection of its own. Raises StoreUnavailable when it opens."""

    def __init__(self, uri: str) -> None:
        self._db = connect_operator(uri)

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def workers(self) -> list[dict[str, Any]]:
        """Registered workers, dead ones included (`alive`).

        `takes` is the condition with the priority, None for every row.
        """
        entries = self._db.execute(_SQL["workers"].encode()).fetchall()
        for entry in entries:
            entry["takes"] = takes(entry["condition"], entry["action"], entry["priority"])
        return entries

    def rules(self) -> list[dict[str, Any]]:
        """Standing rules."""
        return self._db.execute(_SQL["rules"].encode()).fetchall()

    def matches(
        self, conditions: list[str | None], deliver: list[int], rules: list[str]
    ) -> dict[str, Any]:
        """Count active rows for each condition, in one scan.

        Keys: `n0`, `due0`, `lag0` (seconds) … for each condition; `unmatched` for rows that neither
        a condition of `deliver` (indexes) nor a standing rule takes; `overlap` for rows that more
        than one of `deliver` takes.
        """
        columns = ["count(*) AS rows"]
        for number, condition in enumerate(conditions):
            test = escaped(condition or "true")
            due = f"{test} AND next_attempt <= now() AND status <> 'SENDING'"
            columns += [
                f"count(*) FILTER (WHERE {test}) AS n{number}",
                f"count(*) FILTER (WHERE {due}) AS due{number}",
                f"extract(epoch FROM max(now() - next_attempt) FILTER (WHERE {due}))::float8"
                f" AS lag{number}",
            ]
        taken = [f"({escaped(conditions[n] or 'true')} IS TRUE)::int" for n in deliver]
        ruled = [f"({escaped(rule)} IS TRUE)::int" for rule in rules]
        columns.append(
            f"count(*) FILTER (WHERE {' + '.join([*taken, *ruled, '0'])} = 0) AS unmatched"
        )
        columns.append(f"count(*) FILTER (WHERE {' + '.join([*taken, '0'])} > 1) AS overlap")
        query = _SQL["matches"].replace("{columns}", ",\n    ".join(columns))
        row = self._db.execute(query.encode(), {}).fetchone()
        return row or {}

    def verdict(self, message_id: int, conditions: list[str | None]) -> dict[int, list[bool]]:
        """For each row of a message, whether each condition matches it."""
        tests = [f"{escaped(condition or 'true')} IS TRUE" for condition in conditions]
        query = _SQL["verdict"].replace(
            "{columns}", f"ARRAY[{', '.join(tests)}]::boolean[] AS says"
        )
        rows = self._db.execute(query.encode(), {"id": message_id}).fetchall()
        return {row["id"]: row["says"] for row in rows}

    def add_rule(self, rule: dict[str, Any], who: str) -> None:
        """Make a standing rule. Raises PosternError where the name is taken."""
        with self._db.transaction():
            try:
                self._db.execute(_SQL["rule"].encode(), {**rule, "who": who})
            except pg_errors.UniqueViolation:
                raise PosternError(f"there is a rule {rule['name']!r} already") from None
            self._audit(who, "rule add", rule["condition"], rule)

    def remove_rule(self, name: str, who: str) -> bool:
        """Take a standing rule away; False where there is none of that name."""
        with self._db.transaction():
            row = self._db.execute(_SQL["unrule"].encode(), {"name": name}).fetchone()
            if row:
                self._audit(who, "rule remove", row["condition"], {"name": name})
        return bool(row)

    def _audit(self, who: str, action: str, condition: str, details: dict[str, Any]) -> None:
        kept = {key: value for key, value in details.items() if value is not None}
        self._db.execute(
            _SQL["audit"].encode(),
            {"who": who, "action": action, "condition": condition, "details": json.dumps(kept)},
        )
