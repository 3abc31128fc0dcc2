"""Companions: what features do in the statements that begin and settle attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pgmta.features import loaded
from pgmta.model import Item, Outcome
from pgmta.store.queries import Statement


@dataclass(frozen=True, slots=True, eq=False)
class QueueColumn:
    """A column of a feature in table `queue`, which a row gets that stays in the queue.

    The outcome has a parameter of its name and type. `value` is an expression of `o`, the outcome,
    and of `queue`, the row before it.
    """

    name: str
    type: str
    value: Statement


@dataclass(frozen=True, slots=True, eq=False)
class SettleCompanion:
    """What a feature writes in the commit of outcomes that concern it.

    `arrays` returns the parameters of its SQL for some outcomes, none if they don't concern it.
    The expression `after` is evaluated once the rows have changed, because it refers to `changed`,
    their ids; it must not be null. A `column` is for outcomes that are no deliveries; a companion
    without `after` is not asked about a batch of deliveries.
    """

    arrays: Callable[[Sequence[Outcome]], dict[str, Any]]
    after: Statement | None = None
    column: QueueColumn | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BeginCompanion:
    """What a feature asks of rows with `once` right before their transaction begins.

    `condition` is of a row of `queue`; rows that do not meet it do not begin.
    """

    concerns: Callable[[Item], bool]
    condition: Statement


@cache
def settle_companions() -> tuple[SettleCompanion, ...]:
    """Return the companions of settle, which features have registered."""
    return tuple(loaded("settling"))


@cache
def begin_companions() -> tuple[BeginCompanion, ...]:
    """Return the companions of begin, which features have registered."""
    return tuple(loaded("beginning"))
