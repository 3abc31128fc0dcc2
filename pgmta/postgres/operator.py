"""The connection of an operator: of a command, or of a server that acts for one.

It reads times that Python's calendar does not have: infinity, BC, years over 9999. That extends
psycopg's TimestamptzLoader. It names who blocks a statement, in AsyncConnection.wait. Both are
undocumented. Checked with psycopg 3.3.9; tests/pgmta/test_private_names.py fails when they change.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
    PID,
    Pooled,
    check_pooler,
    fitting,
    refuse_former,
    unfit,
)
from pgmta.postgres.primary import NOTE_TIMELINE, TIMELINE, limited, writable
from pgmta.postgres.role import GRANTS

LOCK_TIMEOUT_S = 5.0
"""For which a statement waits for a lock of another session."""

_SHUT_OUT = """
SELECT quote_ident(current_user), (
    SELECT min(rolname) FROM pg_roles
    WHERE rolname = ANY (
        '{pgmta_operator,pgmta_reader,pgmta_queued,pgmta_smtpd,pgmta_web,pgmta_api}')
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

OF_THE_LOG: Sequence[LiteralString] = (
    "SET enable_seqscan = off",
    "SET max_parallel_workers_per_gather = 0",
)
"""Settings of a session that reads the end of the log again and again, by the index of its time.

The statistics of a day that has just begun would have PostgreSQL read all of it, by several
processes.
"""


class _AnyTime(TimestamptzLoader):
    """Reads a time that Python does not have as the first or the last year of its calendar."""

    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return _EARLIEST_TIME if text.startswith(b"-") or text.endswith(b"BC") else _LATEST_TIME


class OperatorConnection(psycopg.AsyncConnection[dict[str, Any]]):
    """psycopg's connection, whose end waits for what its commits did not wait for.

    What was done over it is durable when it has closed without an error, on the standbys too. A
    statement that waits too long for a lock raises Blocked, which names the session that has it.
    """

    _doubtful = False
    _uri = ""

    def name_blockers(self, uri: str) -> None:
        """Ask from now on over a connection of its own which session blocks a statement."""
        self._uri = uri

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run the generator of a statement to its end and return its value."""
        try:
            return await super().wait(gen, interval, timeout)
        except psycopg.errors.LockNotAvailable as error:
            if not self._uri:
                raise
            raise Blocked(await asyncio.to_thread(blockers.named, self._uri, error)) from error

    async def rows(self, query: Any, params: Any = None) -> list[dict[str, Any]]:
        """Run a statement and return its rows. Raises Blocked, psycopg.Error."""
        return await (await self.execute(query, params)).fetchall()

    async def row(self, query: Any, params: Any = None) -> dict[str, Any] | None:
        """Run a statement and return its first row; None: it has none. Raises as `rows` does."""
        return await (await self.execute(query, params)).fetchone()

    async def audit(
        self, who: str, action: str, condition: str, details: dict[str, Any], rows: int = 0
    ) -> None:
        """Note a change that was done at once in table `audit`."""
        await self.execute(_ADD_TO_AUDIT, (who, action, condition, json.dumps(details), rows))

    def hear_doubts(self) -> None:
        """Note from now on which commits did not wait for their standby."""
        self.add_notice_handler(self._note)

    def _note(self, notice: Diagnostic) -> None:
        self._doubtful = self._doubtful or casts_doubt(notice)

    async def close(self) -> None:
        """Close it. Raises Undecided without that proof."""
        try:
            if self._doubtful and not (self.closed or sys.exception()):
                self._doubtful = False
                await self.execute(PROOF, prepare=False)
                if self._doubtful:
                    raise Undecided(UNPROVEN)
        except psycopg.Error as error:
            raise Undecided(UNPROVEN) from error
        finally:
            await super().close()


async def connect_operator(uri: str, settings: Sequence[LiteralString] = ()) -> OperatorConnection:
    """Open a connection of an operator, in autocommit, with rows as dictionaries.

    `settings` are statements that run at its beginning. Of several servers it takes one that takes
    writes, or else any. Raises StoreUnavailable, and LoginRefused if a pooler stands before the
    server.
    """
    wishes = dict.fromkeys((writable(uri), limited(uri)))
    for wish in wishes:
        try:
            connection = await OperatorConnection.connect(
                wish, autocommit=True, row_factory=dict_row, application_name="pgmta queuectl"
            )
            try:
                await prepare(connection)
                for setting in settings:
                    await connection.execute(setting)
                connection.hear_doubts()
                connection.name_blockers(uri)
            except BaseException:
                await connection.close()
                raise
            return connection
        except Pooled as error:
            raise LoginRefused(str(error)) from error
        except psycopg.OperationalError as error:
            failure = error
    raise StoreUnavailable(str(failure).strip()) from failure


@asynccontextmanager
async def connected(
    uri: str, settings: Sequence[LiteralString] = ()
) -> AsyncIterator[OperatorConnection]:
    """Lend a connection, which is closed at the end.

    Raises as `connect_operator` does, and Undecided at the end.
    """
    connection = await connect_operator(uri, settings)
    try:
        yield connection
    finally:
        await connection.close()


async def prepare(connection: OperatorConnection) -> None:
    """Make a connection look in schema pgmta, and read every time that PostgreSQL can store.

    A statement waits for LOCK_TIMEOUT_S for a lock of another session.
    Raises StoreUnavailable if a pooler stands before the server; LoginRefused if the login has no
    role of pgmta; FormerDatabase; psycopg.Error.
    """
    check_pooler(connection)
    cursor = connection.cursor(row_factory=tuple_row)
    for (pid,) in await (await cursor.execute(PID)).fetchall():
        check_pooler(connection, pid)
    # With many partitions, to compile the query of a command takes longer than to run it.
    own = {"jit": "off", "lock_timeout": f"{LOCK_TIMEOUT_S * 1000:.0f}ms"}
    try:
        await cursor.execute(fitting(own), prepare=False)
    except psycopg.errors.InsufficientPrivilege as error:
        raise unfit(error) from error
    await cursor.execute(LOOK_IN_PGMTA)
    for name, role in await (await cursor.execute(_SHUT_OUT)).fetchall():
        if role:
            raise LoginRefused(f"the role {role} lacks rights in schema pgmta: {GRANTS}")
        raise LoginRefused(
            f"the login {name} has no role of pgmta: a superuser runs `GRANT pgmta_operator TO "
            f"{name};`, or pgmta_reader, which changes nothing (docs/programs/sql.md)"
        )
    if await (await cursor.execute(_READABLE)).fetchall():
        found = await (await cursor.execute(_MIGRATIONS)).fetchall()
        refuse_former([name for (name,) in found])
        await cursor.execute(f"SELECT {TIMELINE} FROM pg_control_system()")  # noqa: S608
        for timeline, noted in await cursor.fetchall():
            if timeline and noted not in (None, timeline):
                await cursor.execute(NOTE_TIMELINE)
    connection.adapters.register_loader("timestamptz", _AnyTime)
