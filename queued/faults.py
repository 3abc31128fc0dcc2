"""What an error of PostgreSQL is about: its state, one statement, or the values of a row (pure)."""

from __future__ import annotations

import psycopg

# Classes of SQLSTATE that blame the values of a statement.
_ROW = frozenset((
    "09",  # triggered action exception, such as RAISE in an operator's trigger
    "20",  # no case of a CASE in PL/pgSQL
    "21",  # cardinality violation
    "22",  # data exception
    "23",  # constraint violation
    "27",  # triggered data change violation
    "38", "39",  # a function that is not in SQL
    "44",  # check option of a view
    "54",  # program limit, such as an index entry that is too long
    "P0",  # PL/pgSQL, such as RAISE without a code of its own
))  # fmt: skip
# Classes that blame the text of a statement, or the schema it was written for.
_STATEMENT = frozenset(("0A", "2B", "2D", "2F", "3F", "42"))
# The other classes of PostgreSQL (Appendix A of its manual).
_SERVER = frozenset((
    "00", "01", "02", "03", "08", "0B", "0F", "0L", "0P", "0Z", "10", "24", "25", "26", "28", "34",
    "3B", "3D", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX",
))  # fmt: skip
_LOST_RACE = frozenset(("40001", "40P01"))


def lost_race(error: BaseException) -> bool:
    """Whether the statement may simply be run again: serialization failure, deadlock."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _LOST_RACE


def outage(error: BaseException) -> bool:
    """Whether the server can't do it now, whatever it is; later, or on a new connection, it can.

    So it is with a lost connection, and with a server that starts, ends, is read-only (25006), full
    (class 53) or damaged, or that has cancelled the statement. What SQLSTATE does not lay to a
    statement or its values is an outage.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if not error.sqlstate:  # not from the server
        return isinstance(
            error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError
        )
    return error.sqlstate[:2] not in _ROW | _STATEMENT and not _own(error)


def about_row(error: BaseException) -> bool:
    """Whether one row's values are refused, by the server or already by the encoder."""
    if not isinstance(error, psycopg.Error):
        return True
    if error.sqlstate:
        return error.sqlstate[:2] in _ROW or _own(error)
    return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)


def _own(error: psycopg.Error) -> bool:
    """Whether RAISE gave a code of its own, in an operator's trigger: no class of PostgreSQL's."""
    known = _ROW | _STATEMENT | _SERVER
    return (error.sqlstate or "")[:2] not in known and rolled_back(error)


def rolled_back(error: BaseException) -> bool:
    """Whether the server itself has said that nothing of the statement stays.

    An error does; a fatal one says that a connection ends, which may be after its commit.
    """
    return isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized == "ERROR"


def stale(error: BaseException) -> bool:
    """Whether a new connection may help a statement: what it has prepared is out of date."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "")[:2] == "0A"
