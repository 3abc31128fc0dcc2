"""Connections to PostgreSQL that come back by themselves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from pgmta.errors import AnswerLost, Backend, StoreUnavailable
from pgmta.postgres import binary as arrays
from pgmta.postgres import faults, instants
from pgmta.postgres.connection import Connection

# A server that is gone without a word is noticed within a minute, unless the URI says otherwise.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 3,  # seconds
    "keepalives_idle": 30,  # seconds
    "keepalives_interval": 5,  # seconds
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
# The statements, and the trigger that removes bodies, count on seeing what others have committed.
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

    Statements run in autocommit: each is a transaction of its own, so none is ever open across
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

        Raises StoreUnavailable where PostgreSQL can't be reached or can't do it now, AnswerLost
        where the connection broke meanwhile; the next use connects again. Raises psycopg.Error for
        what PostgreSQL refuses.
        """
        async with self._lock:
            try:
                connection = await self._ready()
            except psycopg.Error as error:
                raise StoreUnavailable(_words(error)) from error
            try:
                yield connection
            except psycopg.Error as error:
                if faults.lost_race(error) or not (faults.outage(error) or faults.stale(error)):
                    raise  # about the statement, not about the server
                # also after an error that leaves it open: another server may be the right one now
                await self.close()
                if not faults.outage(error):
                    raise
                if faults.rolled_back(error):
                    raise StoreUnavailable(_words(error)) from error
                raise AnswerLost(_words(error), connection.backend) from error
            except BaseException:
                # cancelled or failed inside a statement: its protocol state is unknown
                if self._connection and self._connection.pgconn.transaction_status != 0:
                    await self.close()
                raise

    async def run(
        self, query: LiteralString | bytes, params: dict[str, Any] | None = None, *, tries: int = 10
    ) -> list[tuple[Any, ...]]:
        """Run one statement, prepared, and return its rows, read in binary form.

        A statement that lost a race (serialization failure, deadlock) is run again, up to `tries`
        times in all, and once one that was prepared for a schema that has changed.
        Raises StoreUnavailable, psycopg.Error for what PostgreSQL refuses.
        """
        for chance in range(tries):
            try:
                async with self.use() as connection:
                    cursor = connection.cursor(binary=True)
                    await cursor.execute(query, params, prepare=True)
                    return await cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if not (faults.lost_race(error) or (faults.stale(error) and not chance)):
                    raise
                await asyncio.sleep(0.005 * chance)
        raise StoreUnavailable(f"a statement lost {tries} races in a row")

    async def end(self, backends: list[Backend]) -> None:
        """See to it that statements whose answers were lost are done, or will never be.

        The server ends connections that broke, if it still works on them. Those that have ended
        leave the list. Raises StoreUnavailable, also where one has not ended yet.
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

    async def _ready(self) -> Connection:
        if self._connection and self._connection.broken:
            await self.close()  # before anything is sent: what is sent may be done
        if not self._connection:
            self._connection = await connect(self._uri, self._name, self._settings)
        return self._connection

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
    arrays.register(connection)
    return connection


def writable(uri: str) -> str:
    """The connection string with the wish for a server that can be written to.

    Only where it names several hosts and does not say which of them it wants.
    """
    given = psycopg.conninfo.conninfo_to_dict(uri)
    hosts = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")
    said = given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    if said or "," not in str(hosts):
        return uri
    return psycopg.conninfo.make_conninfo(uri, target_session_attrs="read-write")


def connect_operator(uri: str) -> psycopg.Connection[dict[str, Any]]:
    """Open the blocking connection of a command, in autocommit, with rows as dictionaries.

    Of several servers, one that can be written to, or else any. Raises StoreUnavailable.
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
