"""What an error of PostgreSQL is about: its state, one statement, or the values of a row (pure)."""

from __future__ import annotations

import psycopg

# Classes of SQLSTATE that tell of the server, a connection or a transaction. Of the others some
# blame the text of a statement, or the schema it was written for. The rest blame its values; so do
# those that operators' functions make up for RAISE.
_SERVER = frozenset((
    "00", "01", "02", "03", "08", "0B", "0F", "0L", "0P", "0Z", "10", "24", "25", "26", "28",
    "34", "3B", "3D", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX",
))  # fmt: skip
_STATEMENT = frozenset(("0A", "2B", "2D", "2F", "3F", "42"))
_FATAL = frozenset(("FATAL", "PANIC"))
_LOST_RACE = frozenset(("40001", "40P01"))


def lost_race(error: BaseException) -> bool:
    """Whether the statement may simply be run again: serialization failure, deadlock."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _LOST_RACE


def outage(error: BaseException) -> bool:
    """Whether the server can't do it now, whatever it is; later, or on a new connection, it can.

    So it is with a lost connection, and with a server that starts, ends, is read-only (25006), full
    (class 53) or damaged, or that has cancelled the statement.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if not error.sqlstate:  # not from the server
        return isinstance(
            error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError
        )
    if error.diag.severity_nonlocalized in _FATAL:
        return True
    return error.sqlstate[:2] in _SERVER and not locked(error)


def locked(error: BaseException) -> bool:
    """Whether somebody else's transaction holds a row or a table for too long."""
    return isinstance(error, psycopg.Error) and error.sqlstate == "55P03"


def about_row(error: BaseException) -> bool:
    """Whether one row's values are refused, by the server or already by the encoder."""
    if not isinstance(error, psycopg.Error):
        return True
    if error.sqlstate:
        return not (about_statement(error) or locked(error) or outage(error))
    return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)


def about_statement(error: BaseException) -> bool:
    """Whether the text of a statement is refused, or the schema that it was written for."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] in _STATEMENT


def words(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class where it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def rolled_back(error: BaseException) -> bool:
    """Whether the server itself has said that nothing of the statement stays.

    An error does; a fatal one says that a connection ends, which may be after its commit.
    """
    return isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR"


def stale(error: BaseException) -> bool:
    """Whether a new connection may help a statement: what it has prepared is out of date."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] == "0A"
