"""Conditions that PostgreSQL refuses for every row, for example because a function was dropped.

A refused condition would stop every statement that contains it. It is found, named and passed over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg

from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.postgres.operator import OperatorConnection
from pgmta.store.queries import Statement, queries
from pgmta.store.queue.failing_conditions import Condition

_SQL = queries("refused")
_CONTROL = Condition("", "true")  # if it is refused too, the conditions are not the reason


async def refused(link: Link, conditions: Sequence[Condition]) -> dict[Condition, str]:
    """Return the conditions that are refused, each with the error.

    Raises StoreUnavailable, and psycopg.Error if the reason is none of them.
    """
    return await _refused(link.run, conditions)


async def refused_now(
    db: OperatorConnection, conditions: Sequence[Condition]
) -> dict[Condition, str]:
    """Return the same as `refused`, over the connection of an operator."""

    async def run(query: Statement, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in await db.rows(query, params)]

    return await _refused(run, conditions)


async def _refused(
    run: Callable[[Statement, dict[str, Any]], Awaitable[list[tuple[Any, ...]]]],
    conditions: Sequence[Condition],
) -> dict[Condition, str]:
    found: dict[Condition, str] = {}
    for condition in (_CONTROL, *conditions):
        params = {"condition": condition.text}
        try:
            if condition.stored:
                ((fault,),) = await run(_SQL["judge"], params)
                if fault:
                    found[condition] = fault
                    continue
            await run(_SQL["probe"], params)
        except psycopg.Error as error:
            _note(found, condition, error)
    return found


def _note(found: dict[Condition, str], condition: Condition, error: psycopg.Error) -> None:
    if condition is _CONTROL or not faults.about_statement(error):
        raise error
    found[condition] = faults.one_line(error)
