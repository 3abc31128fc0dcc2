"""The connection of an operator's command.

It reads times that Python's calendar does not have: infinity, BC, years over 9999. That extends
psycopg's TimestamptzLoader. It names who blocks a statement, in Connection.wait. Both are
undocumented. Checked with psycopg 3.3.9; tests/pgmta/test_private_names.py fails when they change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
from psycopg.errors import Diagnostic
from psycopg.rows import dict_row, tuple_row
from psycopg.types.datetime import TimestamptzLoader

from pgmta.errors import Blocked, LoginRefused, StoreUnavailable, Undecided
from pgmta.postgres import blockers
from pgmta.postgres.durability import PROOF, UNPROVEN, casts_doubt
from pgmta.postgres.fit_session import (
    LOOK_IN_PGMTA,
    Pooled,
    fit,
    refuse_former,
    writable,
)
from pgmta.postgres.role import GRANTS

LOCK_TIMEOUT_S = 5.0
"""For which a command waits for a lock of another session."""

_SHUT_OUT = """
SELECT quote_ident(current_user), (
    SELECT min(rolname) FROM pg_roles
    WHERE rolname = ANY ('{pgmta_operator,pgmta_reader,pgmta_queued,pgmta_smtpd,pgmta_web}')
        AND pg_has_role(oid, 'USAGE'))
WHERE NOT has_schema_privilege(to_regnamespace('pgmta'), 'USAGE')
"""
_READABLE = """
SELECT FROM pg_class
WHERE oid = to_regclass('pgmta.schema_migrations') AND has_table_privilege(oid, 'SELECT')
"""
_MIGRATIONS = "SELECT name FROM pgmta.schema_migrations"
_ADD_TO_AUDIT = """
INSERT INTO audit (who, action, condition, details, rows, finished_at)
VALUES (%s, %s, %s, %s::jsonb, %s, now())
"""
_EARLIEST_TIME = datetime(2, 1, 1, tzinfo=UTC)
_LATEST_TIME = datetime(9998, 1, 1, tzinfo=UTC)


class _AnyTime(TimestamptzLoader):
    """Reads a time that Python does not have as the first or the last year of its calendar."""

    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return _EARLIEST_TIME if text.startswith(b"-") or text.endswith(b"BC") else _LATEST_TIME


class OperatorConnection(psycopg.Connection[dict[str, Any]]):
    """psycopg's connection, whose end waits for what its commits did not wait for.

    A command ends with success only if what it has done is durable, on the standbys too. A
    statement that waits too long for a lock raises Blocked, which names the session that has it.
    """

    _doubtful = False
    _uri = ""

    def name_blockers(self, uri: str) -> None:
        """Ask from now on over a connection of its own which session blocks a statement."""
        self._uri = uri

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run the generator of a statement to its end and return its value."""
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.errors.LockNotAvailable as error:
            if not self._uri:
                raise
            raise Blocked(blockers.named(self._uri, error)) from error

    def hear_doubts(self) -> None:
        """Note from now on which commits did not wait for their standby."""
        self.add_notice_handler(self._note)

    def _note(self, notice: Diagnostic) -> None:
        self._doubtful = self._doubtful or casts_doubt(notice)

    def close(self) -> None:
        """Close it. Raises Undecided without that proof."""
        try:
            if self._doubtful and not (self.closed or sys.exception()):
                self._doubtful = False
                self.execute(PROOF, prepare=False)
                if self._doubtful:
                    raise Undecided(UNPROVEN)
        except psycopg.Error as error:
            raise Undecided(UNPROVEN) from error
        finally:
            super().close()


def connect_operator(uri: str) -> OperatorConnection:
    """Open the blocking connection of a command, in autocommit, with rows as dictionaries.

    Of several servers it takes one that takes writes, or else any. Raises StoreUnavailable, and
    LoginRefused if a pooler stands before the server.
    """
    wishes = dict.fromkeys((writable(uri), uri))
    for wish in wishes:
        try:
            connection = OperatorConnection.connect(
                wish, autocommit=True, row_factory=dict_row, application_name="pgmta queuectl"
            )
            try:
                prepare(connection)
                connection.hear_doubts()
                connection.name_blockers(uri)
            except BaseException:
                connection.close()
                raise
            return connection
        except Pooled as error:
            raise LoginRefused(str(error)) from error
        except psycopg.OperationalError as error:
            failure = error
    raise StoreUnavailable(str(failure).strip()) from failure


OF_THE_LOG: Sequence[LiteralString] = (
    "SET enable_seqscan = off",
    "SET max_parallel_workers_per_gather = 0",
)
"""Settings of a session that reads the end of the log again and again, by the index of its time.

The statistics of a day that has just begun would have PostgreSQL read all of it, by several
processes.
"""


class OperatorLink:
    """Has the separate connection of a command. Raises StoreUnavailable when it opens."""

    def __init__(self, uri: str, settings: Sequence[LiteralString] = ()) -> None:
        self._db = connect_operator(uri)
        for setting in settings:
            self._db.execute(setting)

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def _audit(
        self, who: str, action: str, condition: str, details: dict[str, Any], rows: int = 0
    ) -> None:
        """Note a change that was done at once in table `audit`."""
        self._db.execute(_ADD_TO_AUDIT, (who, action, condition, json.dumps(details), rows))


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Make a connection look in schema pgmta, and read every time that PostgreSQL can store.

    A statement waits for LOCK_TIMEOUT_S for a lock of another session.
    Raises StoreUnavailable if a pooler stands before the server; LoginRefused if the login has no
    role of pgmta; FormerDatabase; psycopg.Error.
    """
    # With many partitions, to compile the query of a command takes longer than to run it.
    fit(connection, {"jit": "off", "lock_timeout": f"{LOCK_TIMEOUT_S * 1000:.0f}ms"})
    connection.execute(LOOK_IN_PGMTA)
    for name, role in connection.cursor(row_factory=tuple_row).execute(_SHUT_OUT):
        if role:
            raise LoginRefused(f"the role {role} lacks rights in schema pgmta: {GRANTS}")
        raise LoginRefused(
            f"the login {name} has no role of pgmta: a superuser runs `GRANT pgmta_operator TO "
            f"{name};`, or pgmta_reader, which changes nothing (docs/programs/sql.md)"
        )
    for _ in connection.execute(_READABLE):
        found = connection.cursor(row_factory=tuple_row).execute(_MIGRATIONS)
        refuse_former([name for (name,) in found])
    connection.adapters.register_loader("timestamptz", _AnyTime)
