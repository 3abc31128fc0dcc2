"""The cause of an error of PostgreSQL: its state, a statement, or the values of a row (pure)."""

from __future__ import annotations

import re

import psycopg

# Classes of SQLSTATE that concern the server, a connection or a transaction. Of the others, some
# blame the text of a statement, or the schema it was written for. The rest blame its values, as do
# the codes that operators' functions choose for RAISE.
_SERVER_STATE_CLASSES = frozenset((
    "00", "01", "02", "03", "08", "0B", "0F", "0L", "0P", "0Z", "10", "24", "25", "26", "28",
    "34", "3B", "3D", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX",
))  # fmt: skip
_STATEMENT = frozenset(("0A", "2B", "2D", "2F", "3F", "42"))
_FATAL_SEVERITIES = frozenset(("FATAL", "PANIC"))
# libpq has no SQLSTATE for a connection that fails, so the text has to do. A server that speaks
# another language counts as away.
_CONNECTION_REFUSED = re.compile(
    r"authentication failed for user|no password supplied|no pg_hba\.conf entry"
    r"|(?:role|database) \".*\" does not exist|is not permitted to log in"
    r"|permission denied for database|is not currently accepting connections"
)
_LOST_RACE = frozenset(("40001", "40P01"))


def lost_race(error: BaseException) -> bool:
    """Return whether to run the statement again: serialization failure, deadlock."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _LOST_RACE


def outage(error: BaseException) -> bool:
    """Return whether the server can't execute any such statement now, but may later.

    The connection was lost, or the server starts, ends, is read-only (25006), full (class 53) or
    damaged, or it has cancelled the statement.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if not error.sqlstate:  # the error is libpq's, not the server's
        return isinstance(
            error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError
        )
    if error.diag.severity_nonlocalized in _FATAL_SEVERITIES:
        return True
    return error.sqlstate[:2] in _SERVER_STATE_CLASSES and not locked(error)


def refuses_login(error: BaseException) -> bool:
    """Return whether a server has answered that it refuses this login or has no such database."""
    return isinstance(error, psycopg.OperationalError) and bool(
        _CONNECTION_REFUSED.search(str(error))
    )


def locked(error: BaseException) -> bool:
    """Return whether another transaction locks a row or a table for too long."""
    return isinstance(error, psycopg.Error) and error.sqlstate == "55P03"


def about_row(error: BaseException) -> bool:
    """Return whether the values of one row are refused, by the server or by the encoder."""
    if not isinstance(error, psycopg.Error):
        return True
    if error.sqlstate:
        return not (about_statement(error) or locked(error) or outage(error))
    return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)


def about_statement(error: BaseException) -> bool:
    """Return whether the text of a statement, or its schema, is refused."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] in _STATEMENT


def one_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class if it has none.

    Notes follow, such as that of the session that blocks a statement.
    """
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return ": ".join((first, *getattr(error, "__notes__", ())))


def rolled_back(error: BaseException) -> bool:
    """Return whether the server has said that the statement changed nothing.

    An error says so. A fatal error says that the connection ends, which may be after its commit.
    """
    return isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR"


def stale(error: BaseException) -> bool:
    """Return whether a new connection may help: what it has prepared or learned is out of date.

    42804 comes for the oid of a composite type, which a restored schema has no more.
    """
    state = (isinstance(error, psycopg.Error) and error.sqlstate) or ""
    return state[:2] == "0A" or state == "42804"
