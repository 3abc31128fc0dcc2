"""Statements that read by conditions, some of which may fail or be refused."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import psycopg

from pgmta.postgres.faults import about_statement
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import bracketed, queries
from pgmta.store.queue.failing_conditions import MAX_BATCH_ROWS, Condition, about_a_row
from pgmta.store.queue.refused import refused_now

_SQL = queries("reading")


@dataclass(frozen=True, slots=True)
class Fault:
    """A condition fails on `rows` rows, such as `row` of `message`, with PostgreSQL's `error`.

    With 0 rows, PostgreSQL refuses the condition, and it is passed over.
    """

    owner: str
    rows: int
    row: int
    message: int
    error: str

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.owner} is passed over, its condition is refused: {self.error}"
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        where = f"row {self.row} of message {self.message}"
        return f"{self.owner} fails on {rows}, such as {where}: {self.error}"


async def failing(
    db: OperatorConnection,
    condition: str,
    rows: str = "true",
    until: float = float("inf"),
) -> tuple[dict[int, tuple[int, str]], int, bool]:
    """Return the rows on which a condition fails: message id and error by row id.

    Returns also how many rows were tried, and whether these are all rows. `rows` (SQL) names the
    rows to try. No further batch begins after `until` (monotonic clock).
    """
    query = _SQL["failing"].fill(rows=rows)
    found: dict[int, tuple[int, str]] = {}
    total = after = 0
    tried = MAX_BATCH_ROWS
    while tried == MAX_BATCH_ROWS and time.monotonic() < until:
        params = {"condition": condition, "after": after, "batch": MAX_BATCH_ROWS}
        head, *bad = await db.rows(query, params)
        tried, after = head["message_id"], head["id"]
        total += tried
        found.update((row["id"], (row["message_id"], row["error"])) for row in bad)
    return found, total, tried < MAX_BATCH_ROWS


def fault(owner: str, found: dict[int, tuple[int, str]]) -> Fault:
    """Return the summary of the rows that `failing` found."""
    row = min(found)
    return Fault(owner, len(found), row, *found[row])


async def reading[T](
    db: OperatorConnection,
    conditions: Sequence[Condition],
    rows: str,
    run: Callable[[list[str]], Awaitable[T]],
    matching: Sequence[bool] = (),
    *,
    standing: bool = False,
) -> tuple[T, list[Fault]]:
    """Run a statement that reads, with the text of the conditions; return its result and faults.

    If a condition fails on a row, the statement runs again and does not ask it of that row. The
    row counts as matched if `matching` is true for the condition, otherwise as not matched. If
    PostgreSQL refuses one of the `standing` conditions by now, that matches nothing.
    """
    try:
        return await run([bracketed(condition.text) for condition in conditions]), []
    except psycopg.Error as error:
        if not about_a_row(error) and not (standing and about_statement(error)):
            raise
    wrong = await refused_now(db, conditions) if standing else {}
    faults = [Fault(condition.owner, 0, 0, 0, error) for condition, error in wrong.items()]
    texts = []
    async with db.transaction():  # one snapshot, so that no further failing row comes in between
        await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for number, condition in enumerate(conditions):
            if condition in wrong:
                texts.append("false")
                continue
            found, _, _ = await failing(db, condition.text, rows)
            if found:
                faults.append(fault(condition.owner, found))
            value = bool(matching) and matching[number]
            # CASE even without such rows, because WHERE evaluates parts of a condition in any order
            texts.append(
                f"CASE WHEN id = ANY ('{{{','.join(map(str, found))}}}'::bigint[]) THEN {value}"
                f" ELSE {bracketed(condition.text)} END"
            )
        return await run(texts), faults


async def kept(db: OperatorConnection) -> list[Fault]:
    """Return the faults that are marked on held rows."""
    found = []
    for row in await db.rows(_SQL["kept"]):
        owner, _, error = row["error"].partition(" fails on this row: ")
        found.append(Fault(owner, row["rows"], row["id"], row["message_id"], error))
    return found
