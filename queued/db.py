"""Connections to PostgreSQL that come back by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import errors as pg_errors
from psycopg.rows import dict_row

from queued import arrays, instants
from queued.connection import Connection
from queued.errors import StoreUnavailable

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
_RETRY_SAME = (pg_errors.SerializationFailure, pg_errors.DeadlockDetected)


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

        Raises StoreUnavailable where PostgreSQL can't be reached or goes away meanwhile; the
        next use connects again.
        """
        async with self._lock:
            try:
                connection = self._connection or await self._connect()
                yield connection
            except (*_RETRY_SAME, pg_errors.ProgramLimitExceeded):
                raise  # about the statement, not about the server
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                await self.close()
                raise StoreUnavailable(str(error).strip() or type(error).__name__) from error
            except BaseException:
                # cancelled or failed inside a statement: its protocol state is unknown
                if self._connection and self._connection.pgconn.transaction_status != 0:
                    await self.close()
                raise

    async def run(self, query: str, params: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement, prepared, and return its rows, read in binary form.

        A statement that lost a race (serialization failure, deadlock) is run again.
        Raises StoreUnavailable.
        """
        for chance in range(10):
            try:
                async with self.use() as connection:
                    cursor = connection.cursor(binary=True)
                    await cursor.execute(query.encode(), params, prepare=True)
                    return await cursor.fetchall() if cursor.description else []
            except _RETRY_SAME:
                await asyncio.sleep(0.005 * chance)
        raise StoreUnavailable("a statement lost ten races in a row")

    async def _connect(self) -> Connection:
        connection = await connect(self._uri, self._name, self._settings)
        self._connection = connection
        return connection

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection:
            await connection.close()


async def connect(uri: str, name: str, settings: dict[str, str] | None = None) -> Connection:
    """Open an autocommit connection that appears as `postern NAME` in pg_stat_activity."""
    given = psycopg.conninfo.conninfo_to_dict(uri)
    options = {key: value for key, value in _DEFAULTS.items() if key not in given}
    connection = await Connection.connect(
        uri, autocommit=True, application_name=f"postern {name}", prepare_threshold=0, **options
    )
    settings = {**_SETTINGS, **(settings or {})}
    pairs = ", ".join("set_config(%s, %s, false)" for _ in settings)
    flat = [part for pair in settings.items() for part in pair]
    await connection.execute(f"SELECT {pairs}".encode(), flat)
    arrays.register(connection)
    return connection


def connect_operator(uri: str) -> psycopg.Connection[dict[str, Any]]:
    """Open the blocking connection of a command, in autocommit, with rows as dictionaries.

    Raises StoreUnavailable.
    """
    try:
        connection = psycopg.connect(
            uri, autocommit=True, row_factory=dict_row, application_name="postern queuectl"
        )
    except psycopg.OperationalError as error:
        raise StoreUnavailable(str(error).strip()) from error
    instants.register(connection)
    return connection
