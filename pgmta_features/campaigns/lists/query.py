"""A query of an operator that gives recipients, on the operator's own connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from pgmta.postgres import blockers
from pgmta.postgres.operator import LOCK_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The columns of a query, and its rows as they come; a null is an empty text.

    `estimate` is the planner's guess of their number.
    """

    columns: Sequence[str]
    rows: Iterator[list[str]]
    estimate: int


class QueryError(Exception):
    """The server of the query refuses it or fails, for the reason that is the text."""


@contextmanager
def open_query(uri: str, query: str) -> Iterator[QueryRows]:
    """Run a query in a transaction that may only read. The server sends row after row.

    The text is the operator's, with the operator's rights; no function of pgmta ever runs it. The
    server parses it alone before, so that it is one statement. Raises QueryError, also by the rows.
    """
    query = query.strip().rstrip(";")
    with ExitStack() as stack:
        with _named_errors(uri):
            db = stack.enter_context(
                psycopg.connect(make_conninfo(uri, application_name="pgmta queuectl"))
            )
            db.read_only = True
            db.execute("SET client_encoding = 'UTF8'")
            db.execute(f"SET lock_timeout = {LOCK_TIMEOUT_S * 1000:.0f}".encode())
            columns = _columns(db, query)
            estimate = _estimate(db, query)
            # on lines of its own, so that a comment at its end does not hide the rest
            statement = f"COPY (\n{query}\n) TO STDOUT".encode()
            copy = stack.enter_context(stack.enter_context(db.cursor()).copy(statement))
        yield QueryRows(columns, _rows(uri, copy), estimate)


def _rows(uri: str, copy: psycopg.Copy) -> Iterator[list[str]]:
    with _named_errors(uri):
        for row in copy.rows():
            yield [cell or "" for cell in row]


def _columns(db: psycopg.Connection, query: str) -> list[str]:
    """Return the names of a query's columns, and run nothing. Raises QueryError, psycopg.Error."""
    for result in (db.pgconn.prepare(b"", query.encode()), db.pgconn.describe_prepared(b"")):
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
    if not result.nfields:
        raise QueryError("it is no query with columns")
    return [(result.fname(index) or b"").decode() for index in range(result.nfields)]


def _estimate(db: psycopg.Connection, query: str) -> int:
    ((plans,),) = db.execute(f"EXPLAIN (FORMAT JSON) {query}".encode()).fetchall()
    return int(plans[0]["Plan"]["Plan Rows"])


@contextmanager
def _named_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if blockers.limited(error):
            raise QueryError(blockers.named(uri, error)) from None
        raise QueryError(error.diag.message_primary or str(error).strip()) from None
