"""Conditions that PostgreSQL refuses for every row, for example because a function was dropped.

A refused condition would stop every statement that contains it. It is found, named and passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.store.queries import queries
from pgmta.store.queue.failing_conditions import Condition

_SQL = queries("refused")
_CONTROL = Condition("", "true")  # if it is refused too, the conditions are not the reason


async def refused(link: Link, conditions: Sequence[Condition]) -> dict[Condition, str]:
    """Return the conditions that are refused, each with the error.

    Raises StoreUnavailable, and psycopg.Error if the reason is none of them.
    """
    found: dict[Condition, str] = {}
    for condition in (_CONTROL, *conditions):
        params = {"condition": condition.text}
        try:
            if condition.stored:
                ((fault,),) = await link.run(_SQL["judge"], params)
                if fault:
                    found[condition] = fault
                    continue
            await link.run(_SQL["probe"], params)
        except psycopg.Error as error:
            _note(found, condition, error)
    return found


def refused_now(
    db: psycopg.Connection[dict[str, Any]], conditions: Sequence[Condition]
) -> dict[Condition, str]:
    """Return the same as `refused`, over the connection of a command."""
    found: dict[Condition, str] = {}
    for condition in (_CONTROL, *conditions):
        params = {"condition": condition.text}
        try:
            if condition.stored:
                row = db.execute(_SQL["judge"], params).fetchone() or {}
                if row["fault"]:
                    found[condition] = row["fault"]
                    continue
            db.execute(_SQL["probe"], params)
        except psycopg.Error as error:
            _note(found, condition, error)
    return found


def _note(found: dict[Condition, str], condition: Condition, error: psycopg.Error) -> None:
    if condition is _CONTROL or not faults.about_statement(error):
        raise error
    found[condition] = faults.one_line(error)
