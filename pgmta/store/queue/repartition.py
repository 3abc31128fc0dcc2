"""Changes of the queue's partitions while mail flows.

It copies rows beforehand, in a transaction that stops no mail. Mail waits only for the last part:
take the lock, copy the rows that have changed meanwhile, attach (docs/operate/partitions.md).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from psycopg import errors as pg_errors
from psycopg import sql

from pgmta.errors import PartitionError
from pgmta.postgres.operator import OperatorConnection
from pgmta.postgres.role import require_temporary
from pgmta.store.queries import queries
from pgmta.store.queue.partitions import Partition, Values, table, takes, tree

LOCK_TIMEOUT_S = 0.3
"""A try to get the lock may stop mail for so long. Between tries mail flows twice as long."""

_SQL = queries("repartition")
_NAME = re.compile(r"queue_[a-z0-9_]{1,57}")
_RACE_ERRORS = (pg_errors.LockNotAvailable, pg_errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class Moved:
    """The report of a change: rows moved, seconds without mail, tries at the lock."""

    name: str
    rows: int
    stopped: float
    tries: int


class Repartition:
    """Changes partitions, each change in one transaction: a failed one leaves nothing behind.

    It tries for `wait` seconds to get the lock. Every method raises PartitionError if the change
    can't be made.
    """

    def __init__(self, db: OperatorConnection, wait: float = 60.0) -> None:
        self._db = db
        self._wait = wait

    async def add_partition(self, name: str, values: Values) -> Moved:
        """Make a leaf for these values; their rows move there from the default leaf."""
        async with self._db.transaction():
            name, values = await self._begin(name), _distinct(values)
            for leaf in await self._leaves():
                if taken := [value for value in leaf.values if value in values]:
                    raise PartitionError(f"{leaf.name} has {takes(taken)} already: split that one")
            return await self._new_leaf(name, values, await self._default())

    async def split(self, name: str, values: Values, into: str) -> Moved:
        """Move some of a leaf's values, with their rows, into a new leaf."""
        async with self._db.transaction():
            into, values = await self._begin(into), _distinct(values)
            leaf = await self._leaf(name)
            if strange := [value for value in values if value not in leaf.values]:
                raise PartitionError(f"{leaf.name} does not take {takes(strange)}")
            left = [value for value in leaf.values if value not in values]
            if not left:
                raise PartitionError(f"{leaf.name} takes nothing else: there is nothing to split")
            return await self._new_leaf(into, values, leaf, left)

    async def drop(self, name: str) -> Moved:
        """Move the rows of a leaf into the default leaf and drop it.

        Mail stops while all of them move, because no row may be in two leaves before.
        """
        async with self._db.transaction():
            await self._begin()
            leaf, default = await self._leaf(name), await self._default()
            self._parts |= {
                "source": table(leaf.name), "target": table(default.name),
                "columns": await self._columns(),
            }  # fmt: skip

            async def switch() -> int:
                await self._run("detach")
                moved = await self._run("merge")
                await self._run("drop")
                return moved

            return await self._stopped(leaf.name, switch)

    async def _new_leaf(
        self, name: str, values: Values, source: Partition, left: Values | None = None
    ) -> Moved:
        """Make a leaf of rows that are in `source`. `source` keeps the values `left`, if given."""
        self._parts |= {
            "target": table(name), "source": table(source.name), "columns": await self._columns(),
            "mine": _condition(values), "values": _literals(values), "comment": _comment(values),
            "default": table((await self._default()).name), "options": await self._options(),
        }  # fmt: skip
        await require_temporary(self._db)
        await self._run("prepare")
        await self._run("catch_up")
        await self._run("analyze")  # for the plans of the statements under the lock

        async def switch() -> int:
            await self._run("catch_up")
            if left is not None:
                await self._run("detach")
            moved = await self._run("take")
            copied = (await self._rows("copied", target=table(name)))[0]["rows"]
            if copied != moved:  # ids need not be unique; better no leaf than a lost row
                raise PartitionError(f"{copied} rows were copied of {moved}: nothing is changed")
            if left is not None:
                await self._run("reattach", values=_literals(left), comment=_comment(left))
            await self._run("attach")
            return moved

        return await self._stopped(name, switch, lambda: self._run("catch_up"))

    async def _stopped(
        self,
        name: str,
        switch: Callable[[], Awaitable[int]],
        before: Callable[[], Awaitable[object]] | None = None,
    ) -> Moved:
        """Run `switch` under the lock; ahead of each try run `before`, which stops no mail.

        No try waits long, because all later statements wait behind one that waits for a lock.
        """
        self._parts.setdefault("default", table((await self._default()).name))
        end = time.monotonic() + self._wait
        tries = 0
        try:
            await self._timeout(self._wait)
            await self._run("quiet")
            while True:
                tries += 1
                if before:
                    await before()
                try:
                    async with self._db.transaction():
                        await self._timeout(LOCK_TIMEOUT_S)
                        started = time.monotonic()
                        await self._run("stop")
                        moved = await switch()
                    break
                except _RACE_ERRORS:
                    if time.monotonic() > end:
                        raise
                    await asyncio.sleep(2 * LOCK_TIMEOUT_S)
        except _RACE_ERRORS as error:
            raise PartitionError(
                f"no lock on the queue within {self._wait:g} s; {await self._blockers()}"
            ) from error
        # the commit follows, which writes one record only
        return Moved(name, moved, time.monotonic() - started, tries)

    async def _begin(self, name: str = "") -> str:
        """Start a change; return the full name of the table to be made."""
        self._parts: dict[str, sql.Composable] = {}
        try:
            await self._run("turn")
        except pg_errors.LockNotAvailable as error:
            raise PartitionError("another change of the partitions is under way") from error
        if not name:
            return name
        name = full_name(name)
        if await self._rows("known", name=sql.Literal(f"pgmta.{name}")):
            raise PartitionError(f"there is a table {name} already")
        return name

    async def _leaves(self) -> list[Partition]:
        leaves = [leaf for leaf in await tree(self._db) if leaf.parent == "queue_def"]
        if not leaves:
            raise PartitionError(
                "there is no queue_def with partitions: see queuectl database partition check"
            )
        return leaves

    async def _default(self) -> Partition:
        for leaf in await self._leaves():
            if leaf.default and leaf.rows is not None:
                return leaf
        raise PartitionError("queue_def has no default leaf: see queuectl database partition check")

    async def _leaf(self, name: str) -> Partition:
        name = full_name(name)
        for leaf in await self._leaves():
            if leaf.name == name:
                if leaf.default:
                    raise PartitionError(f"{name} is the default leaf, which has to stay")
                if leaf.rows is None:
                    raise PartitionError(f"{name} has partitions below it")
                return leaf
        if name in ("queue_def", *(partition.name for partition in await tree(self._db))):
            raise PartitionError(f"{name} is no leaf of queue_def: it has to stay as it is")
        raise PartitionError(f"there is no partition {name}")

    async def _columns(self) -> sql.Composable:
        return sql.SQL(", ").join(
            sql.Identifier(row["attname"]) for row in await self._rows("columns")
        )

    async def _options(self) -> sql.Composable:
        """Return the settings of the default leaf for a new one, because a parent has none."""
        rows = await self._rows(
            "options", leaf=sql.Literal(f"pgmta.{(await self._default()).name}")
        )
        pairs = [
            sql.SQL("{} = {}").format(sql.Identifier(row["name"]), sql.Literal(row["value"]))
            for row in rows
        ]
        return sql.SQL("WITH ({})").format(sql.SQL(", ").join(pairs)) if pairs else sql.SQL("")

    async def _timeout(self, seconds: float) -> None:
        value = sql.Literal(f"{seconds * 1000:.0f}ms")
        await self._db.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(value))

    async def _blockers(self) -> str:
        rows = await self._rows("blockers")
        if not rows:
            return "the sessions that had it have ended: try again"
        return "held by " + ", ".join(
            f"pid {row['pid']} ({row['name'] or 'unnamed'}, {row['state']}, for {row['since']})"
            for row in rows
        )

    async def _run(self, query: str, **parts: sql.Composable) -> int:
        """Run a named statement with the parts of this change; return the number of its rows."""
        cursor = await self._db.execute(_SQL[query].format(**{**self._parts, **parts}))
        return cursor.rowcount

    async def _rows(self, query: str, **parts: sql.Composable) -> list[dict[str, Any]]:
        return await self._db.rows(_SQL[query].format(**parts))


def full_name(name: str) -> str:
    """Return the name with its prefix. Raises PartitionError for one that needs quotes."""
    full = name if name.startswith("queue_") else f"queue_{name}"
    if not _NAME.fullmatch(full):
        raise PartitionError(f"{name!r} is no name: lower-case letters, digits and _, at most 63")
    return full


def _distinct(values: Values) -> Values:
    if not values:
        raise PartitionError("no value of _partid is given")
    if any(value and "\0" in value for value in values):
        raise PartitionError("a value of _partid can't contain NUL")
    return list(dict.fromkeys(values))


def _literals(values: Values) -> sql.Composable:
    return sql.SQL(", ").join(sql.Literal(value) for value in values)


def _comment(values: Values) -> sql.Composable:
    return sql.Literal(f"Rows of the queue: {takes(values)}.")


def _condition(values: Values) -> sql.Composable:
    """Return a list partition's condition as PostgreSQL writes it, so that a check proves it."""
    key = sql.SQL("(metadata ->> '_partid')")
    some = [value for value in values if value is not None]
    listed = sql.SQL("{} IN ({})").format(key, _literals(list(some))) if some else sql.SQL("false")
    if None in values:
        return sql.SQL("({} IS NULL OR {})").format(key, listed)
    return sql.SQL("({} IS NOT NULL AND {})").format(key, listed)
