"""Explainers: why rows of a message wait, as features know it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pgmta.features import loaded
from pgmta.model import Item
from pgmta.postgres.operator import OperatorConnection

if TYPE_CHECKING:
    from queued.routing.routes import Routes

type Row = dict[str, Any]
"""A row of the queue by columns, as JSON has it. Explainers add keys."""
type Ask = Callable[[bytes, Mapping[str, Any]], Awaitable[list[Row]]]
"""Runs a statement with parameters, and returns its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """What a feature says of the rows of a message.

    `add_facts` gets a connection, the rows, and the routes if they are known. It gives
    each row what the feature knows of it, under keys of its own, and raises what the database does.
    By these facts `reason` returns for what a row waits, '' if for nothing of the feature, and
    `lines` further lines of `queuectl explain`, each with its label. With `in_show`, it is asked
    for `queuectl show` too, without routes.

    `reasons_for_keys` gets ids of rows, and returns for what they wait in words for those whom a
    key of the HTTP API serves: without what operators write for each other. Its login has few
    rights.
    """

    add_facts: Callable[[OperatorConnection, Sequence[Row], Routes | None], Awaitable[None]]
    reason: Callable[[Row], str]
    lines: Callable[[Row], Iterable[tuple[str, str]]] = lambda row: ()
    in_show: bool = False
    reasons_for_keys: Callable[[Ask, Sequence[int]], Awaitable[Mapping[int, str]]] | None = None


@cache
def explainers() -> tuple[Explainer, ...]:
    """Return the explainers of all features."""
    return tuple(loaded("explainers"))


def first_reason(row: Row, explainers: Iterable[Explainer]) -> str:
    """Return for what a row waits by the first explainer that has a reason; '' if none has."""
    return next(filter(None, (each.reason(row) for each in explainers)), "")


def mail_of(row: Row) -> Item:
    """Return a row as routes see it."""
    addresses = row["sender"], row["recipient"], row["domain"]
    mail = Item(row["id"], row["message_id"], *addresses, row["attempts"], row["ts"], 0)
    mail.tenant, mail.priority = row["tenant"], row["priority"]
    mail.metadata = json.dumps(row["metadata"])
    return mail
