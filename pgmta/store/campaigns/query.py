"""A query of an operator that gives recipients, on the operator's own connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from pgmta.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The columns of a query, and its rows as they come; a null is an empty text."""

    columns: Sequence[str]
    rows: Iterator[list[str]]


@contextmanager
def open_query(uri: str, query: str) -> Iterator[QueryRows]:
    """Run a query in a transaction that may only read. The server sends row after row.

    The text is the operator's, with the operator's rights; no function of pgmta ever runs it. The
    server parses it alone before, so that it is one statement. Raises ConfigError, psycopg.Error.
    """
    query = query.strip().rstrip(";")
    with psycopg.connect(make_conninfo(uri, application_name="pgmta queuectl")) as db:
        db.read_only = True
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        db.execute("SET client_encoding = 'UTF8'")
        columns = _columns(db, query)
        # the lines keep a comment at its end inside
        statement = sql.SQL("COPY (\n{}\n) TO STDOUT").format(sql.SQL(query))  # type: ignore[arg-type]
        with db.cursor() as cursor, cursor.copy(statement) as copy:
            yield QueryRows(columns, _rows(copy))


def _rows(copy: psycopg.Copy) -> Iterator[list[str]]:
    for row in copy.rows():
        yield [cell or "" for cell in row]


def _columns(db: psycopg.Connection, query: str) -> list[str]:
    """Return the names of a query's columns, and run nothing."""
    for result in (db.pgconn.prepare(b"", query.encode()), db.pgconn.describe_prepared(b"")):
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result, "utf-8")
    if not result.nfields:
        raise ConfigError(["--sql: it is no query with columns"])
    return [(result.fname(index) or b"").decode() for index in range(result.nfields)]
