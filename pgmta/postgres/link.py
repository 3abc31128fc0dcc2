"""Connections to PostgreSQL that are made again after they broke."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from pgmta.errors import AnswerLost, Backend, StoreUnavailable
from pgmta.postgres import binary, faults, instants
from pgmta.postgres.connection import Connection

# A server that vanishes without closing is noticed within a minute, unless the URI says otherwise.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 3,  # seconds
    "keepalives_idle": 30,  # seconds
    "keepalives_interval": 5,  # seconds
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
# The statements, and the trigger that removes bodies, rely on seeing rows that others committed.
_SETTINGS = {"default_transaction_isolation": "read committed"}
_LOOKS, _LOOK = 10, 0.02  # looks, and seconds between them, until a process has ended
_BACKEND = """pg_backend_pid(),
    (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid()))"""
_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE (pid, backend_start) = (%(pid)s, %(began)s)
"""


class Link:
    """One connection, made when it is first needed and made again after it broke.

    Statements run in autocommit: each is a separate transaction, so none is ever open across
    network I/O. `settings` are run-time parameters set at every connect.
    """

    def __init__(self, uri: str, name: str, settings: dict[str, str] | None = None) -> None:
        self._uri = uri
        self._name = name
        self._settings = settings or {}
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """Lend the connection to one user at a time.

        Raises StoreUnavailable if PostgreSQL can't be reached or can't do it now, and AnswerLost if
        the connection broke meanwhile; the next use connects again. Raises psycopg.Error for
        anything else that PostgreSQL refuses.
        """
        async with self._lock:
            connection = self._connection
            if connection is None or connection.broken:
                connection = await self._connect()
            try:
                yield connection
            except BaseException as error:
                await self._failed(connection, error)
                raise

    async def run(
        self, query: LiteralString | bytes, params: dict[str, Any] | None = None, *, tries: int = 10
    ) -> list[tuple[Any, ...]]:
        """Run one statement, prepared, and return its rows, read in binary form.

        A statement that lost a race (serialization failure, deadlock) runs again, up to `tries`
        times in all. One that was prepared for another schema runs again once.
        Raises StoreUnavailable, AnswerLost and psycopg.Error as `use` does.
        """
        for chance in range(tries):
            try:
                async with self._lock:  # as in `use`, which costs more
                    connection = self._connection
                    if connection is None or connection.broken:
                        connection = await self._connect()
                    try:
                        cursor = connection.cursor(binary=True)
                        await cursor.execute(query, params, prepare=True)
                        return await cursor.fetchall() if cursor.description else []
                    except BaseException as error:
                        await self._failed(connection, error)
                        raise
            except psycopg.Error as error:
                if not (faults.lost_race(error) or (faults.stale(error) and not chance)):
                    raise
                await asyncio.sleep(0.005 * chance)
        raise StoreUnavailable(f"a statement lost {tries} races in a row")

    async def _connect(self) -> Connection:
        """Connect again, before anything is sent: a statement that was sent may be done."""
        try:
            await self.close()
            self._connection = await connect(self._uri, self._name, self._settings)
        except psycopg.Error as error:
            raise StoreUnavailable(_words(error)) from error
        return self._connection

    async def _failed(self, connection: Connection, error: BaseException) -> None:
        """Close a connection that can't be used again, and raise the error that callers get.

        Returns if the error itself is theirs.
        """
        if not isinstance(error, psycopg.Error):
            # cancelled or failed inside a statement: its protocol state is unknown
            if self._connection and self._connection.pgconn.transaction_status != 0:
                await self.close()
            return
        if faults.lost_race(error) or not (faults.outage(error) or faults.stale(error)):
            return  # about the statement, not about the server
        # also after an error that leaves it open: another server may be the right one now
        await self.close()
        if not faults.outage(error):
            return
        if faults.rolled_back(error):
            raise StoreUnavailable(_words(error)) from error
        raise AnswerLost(_words(error), connection.backend) from error

    async def end(self, backends: list[Backend]) -> None:
        """Return when each statement whose answer was lost is done, or will never be done.

        PostgreSQL ends the connections that broke and that it still works on. A process that has
        ended leaves the list. Raises StoreUnavailable, also if a process has not ended yet.
        """
        while backends:
            pid, began = backends[-1]
            for _ in range(_LOOKS):
                ((working,),) = await self.run(_END, {"pid": pid, "began": began})
                if not working:
                    break
                await asyncio.sleep(_LOOK)
            else:
                raise StoreUnavailable(f"process {pid} of PostgreSQL has not ended yet")
            backends.pop()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection:
            await connection.close()


async def connect(uri: str, name: str, settings: dict[str, str] | None = None) -> Connection:
    """Open an autocommit connection that appears as `pgmta NAME` in pg_stat_activity.

    Raises psycopg.Error.
    """
    given = psycopg.conninfo.conninfo_to_dict(uri)
    options = {key: value for key, value in _DEFAULTS.items() if key not in given}
    connection = await Connection.connect(
        writable(uri),
        autocommit=True,
        application_name=f"pgmta {name}",
        prepare_threshold=0,
        **options,
    )
    settings = {**_SETTINGS, **(settings or {})}
    pairs = ", ".join("set_config(%s, %s, false)" for _ in settings)
    flat = [part for pair in settings.items() for part in pair]
    try:
        cursor = await connection.execute(f"SELECT {pairs}, {_BACKEND}".encode(), flat)
        connection.backend = (await cursor.fetchall())[0][-2:]
    except BaseException:
        await connection.close()
        raise
    binary.register(connection)
    return connection


def writable(uri: str) -> str:
    """Return the connection string with a request for a server that takes writes.

    It is added only if the string names several hosts and does not say which of them it wants.
    """
    given = psycopg.conninfo.conninfo_to_dict(uri)
    hosts = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")
    said = given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    if said or "," not in str(hosts):
        return uri
    return psycopg.conninfo.make_conninfo(uri, target_session_attrs="read-write")


def connect_operator(uri: str) -> psycopg.Connection[dict[str, Any]]:
    """Open the blocking connection of a command, in autocommit, with rows as dictionaries.

    Of several servers it takes one that takes writes, or else any. Raises StoreUnavailable.
    """
    wishes = dict.fromkeys((writable(uri), uri))
    for wish in wishes:
        try:
            connection = psycopg.connect(
                wish, autocommit=True, row_factory=dict_row, application_name="pgmta queuectl"
            )
            instants.register(connection)
            return connection
        except psycopg.OperationalError as error:
            failure = error
    raise StoreUnavailable(_words(failure)) from failure


def _words(error: psycopg.Error) -> str:
    return str(error).strip() or type(error).__name__
