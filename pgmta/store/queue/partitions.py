"""The present partitions of the queue: the tree, and its problems."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from pgmta.errors import PartitionError, StoreUnavailable
from pgmta.postgres import blockers
from pgmta.postgres.operator import OperatorConnection, prepare
from pgmta.postgres.primary import writable
from pgmta.store.queries import queries

SETTINGS = {
    "fillfactor": "50",
    "autovacuum_vacuum_scale_factor": "0.1",
    "autovacuum_vacuum_threshold": "2000",
    "autovacuum_vacuum_insert_threshold": "-1",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0.2",
    "autovacuum_analyze_threshold": "20000",
}
"""The storage settings of a leaf below queue_def. Half-full pages make claims cheap."""

Values = list[str | None]
"""Values of `_partid`; None means rows without one."""

_SQL = queries("partitions")
_BOUND = re.compile(r"'((?:[^']|'')*)'|\bNULL\b")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of queue. `rows` is an estimate unless asked otherwise, `size` in octets.

    `values` are the values of its bound, none for a default partition; `takes` is the same for
    readers. Tables that are partitioned themselves have neither rows nor size nor oldest.
    """

    name: str
    parent: str
    default: bool
    values: Values
    takes: str
    rows: int | None = None
    size: int | None = None
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake (`problem`) or a possible improvement (`hint`), and a remedy."""

    severity: str
    object: str
    finding: str
    remedy: str


@asynccontextmanager
async def opened(uri: str) -> AsyncIterator[OperatorConnection]:
    """Open a connection for the functions here and in `repartition`.

    Raises StoreUnavailable if it cannot be opened or breaks, PartitionError if PostgreSQL refuses
    a statement.
    """
    try:
        # a text with several statements can't be prepared
        db = await OperatorConnection.connect(
            writable(uri), autocommit=True, row_factory=dict_row, prepare_threshold=None,
            application_name="pgmta queuectl database partition",
        )  # fmt: skip
        try:
            await prepare(db)
            yield db
        finally:
            await db.close()
    except psycopg.OperationalError as error:
        raise StoreUnavailable(await asyncio.to_thread(blockers.named, uri, error)) from error
    except psycopg.DatabaseError as error:
        raise PartitionError(str(error).strip()) from error


def table(name: str) -> sql.Identifier:
    """Return the table's name for a statement."""
    return sql.Identifier("pgmta", name)


async def tree(db: OperatorConnection, *, exact: bool = False) -> list[Partition]:
    """Return all partitions, parents before children.

    `exact` counts the rows, which reads all of them. Otherwise the number is an estimate, and the
    oldest row is the row with the lowest id.
    """
    found: dict[str, list[Partition]] = {}
    for row in await run(db, "tree"):
        if row["parent"] is None:
            continue
        more: dict[str, Any] = {}
        if row["leaf"]:
            leaf = sql.Literal(table(row["name"]).as_string(None))
            counted = await run(db, "exact" if exact else "oldest", leaf=leaf)
            more = {"rows": row["rows"], "size": row["size"], **(counted[0] if counted else {})}
        values: Values = [
            None if match[0] == "NULL" else match[1].replace("''", "'")
            for match in _BOUND.finditer(row["bound"])
        ]
        default = row["bound"] == "DEFAULT"
        takes = _takes(row["bound"], row["key"], values)
        found.setdefault(row["parent"], []).append(
            Partition(row["name"], row["parent"], default, values, takes, **more)
        )

    def below(parent: str) -> Iterator[Partition]:
        for partition in found.get(parent, []):
            yield partition
            yield from below(partition.name)

    return list(below("queue"))


async def check(db: OperatorConnection, least: int | None) -> list[Finding]:
    """Return the findings, problems first.

    With `least`, values of `_partid` with at least this number of rows in a default leaf are
    hints. For them the function reads the leaf.
    """
    rows = await run(db, "findings", settings=sql.Literal(json.dumps(SETTINGS)))
    found = [Finding(**row) for row in rows]
    for leaf in await tree(db) if least else []:
        if leaf.default and leaf.parent == "queue_def" and leaf.rows is not None:
            name = sql.Literal(table(leaf.name).as_string(None))
            if not (await run(db, "readable", leaf=name))[0]["readable"]:
                continue
            for row in await run(db, "deserving", leaf=table(leaf.name), least=sql.Literal(least)):
                text = f"{row['rows']} rows have _partid {quoted([row['value']])}: worth a leaf"
                found.append(Finding("hint", leaf.name, text, "queuectl database partition add"))
    if await run(db, "log_exists"):
        (log,) = await run(db, "log_default")
        if log["rows"]:
            text = f"{log['rows']} rows of days without a partition, the oldest of {log['oldest']}"
            remedy = "move them away: until then the partitions of their days can't be made"
            found.append(Finding("problem", "attempts_default", text, remedy))
    return sorted(found, key=lambda finding: finding.severity, reverse=True)


async def run(db: OperatorConnection, name: str, **parts: sql.Composable) -> list[dict[str, Any]]:
    """Return the rows of a named statement."""
    return await db.rows(_SQL[name].format(**parts))


def quoted(values: Values) -> str:
    """Return the values for readers, quoted as in SQL: '1', 'o''clock'."""
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values if value is not None)


def takes(values: Values) -> str:
    """Say which `_partid` a leaf takes, for readers."""
    some = quoted(values)
    if not some:
        return "rows without _partid"
    return f"_partid IN ({some})" + (" and rows without _partid" if None in values else "")


def _takes(bound: str, key: str, values: Values) -> str:
    if bound == "DEFAULT":
        return "default"
    if "'_partid'" in key:
        return takes(values)
    return ", ".join(str(value) for value in values) if values else bound
