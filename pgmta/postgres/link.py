"""Connections to PostgreSQL that are made again after they broke."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString, cast

import psycopg
from psycopg.rows import dict_row

from pgmta.errors import AnswerLost, Backend, Blocked, LoginRefused, StoreUnavailable
from pgmta.postgres import binary, blockers, faults, primary
from pgmta.postgres.fit_session import (
    AS_STORED,
    LOOK_IN_PGMTA,
    PID,
    Pooled,
    check_pooler,
    fitting,
    has_octets,
    in_utf8,
    unfit,
)
from pgmta.postgres.link_connection import LinkConnection
from pgmta.postgres.prepared_statements import PreparedStatements

_PROOF_TIMEOUT_S = 30.0  # afterwards a commit that did not wait for its standby counts as undecided
_BLOCKERS_TIMEOUT_S = 2.0  # for the question which session blocks
_MAX_LOOKS, _LOOK_INTERVAL_S = 10, 0.02  # at whether a process of the server has ended
_SESSION_START: LiteralString = f"""
SELECT backend_start, (SELECT jsonb_object_agg(typname, oid::bigint) FROM pg_type
    WHERE typnamespace = to_regnamespace('pgmta') AND typname = ANY (%s)), {primary.TIMELINE}
FROM pg_stat_get_activity(pg_backend_pid()), pg_control_system()
"""  # noqa: S608 a constant of this program
_END_SESSION = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE (pid, backend_start) = (%(pid)s, %(began)s)
"""


class Link:
    """One connection, made when it is first needed and made again after it broke.

    Statements run in autocommit: each is a separate transaction, so none is ever open across
    network I/O. `settings` are run-time parameters set at every connect.

    A statement whose commit did not wait for the standby returns after a proof. Without one it
    raises Undecided after `proof_s` seconds.
    """

    def __init__(
        self,
        uri: str,
        name: str,
        settings: dict[str, str] | None = None,
        proof_s: float = _PROOF_TIMEOUT_S,
    ) -> None:
        self._uri = uri
        self._name = name
        self._settings = settings or {}
        self.proof_s = proof_s
        """Limit of the time for a proof of durability, in seconds."""
        self.timeline: int | None = None
        """That of the server of the last connection; None: of none, or it takes no writes."""
        self.sessions = 0
        """How many connections there were: right after an answer, the number of its session."""
        self._connection: LinkConnection | None = None
        self._statements: PreparedStatements | None = None  # those of the present connection
        # sees, as LinkConnection.broken does, that the server hung up
        self._hang_up = select.poll()
        self._lock = asyncio.Lock()
        self._used = False  # since the last `close_unused`

    @asynccontextmanager
    async def use(self) -> AsyncIterator[LinkConnection]:
        """Lend the connection to one user at a time.

        Raises StoreUnavailable if PostgreSQL can't be reached or can't do it now, and AnswerLost if
        the connection broke meanwhile; the next use connects again. Raises psycopg.Error for
        anything else that PostgreSQL refuses.
        """
        async with self._lock:
            self._used = True
            connection = self._connection
            if connection is None or connection.broken:
                connection = await self._connect()
            if self._statements:
                self._statements.stop()
            try:
                yield connection
                if connection.doubtful:
                    await self._prove(connection)
            except BaseException as error:
                await self._failed(connection, error)
                raise

    @property
    def latest_timeline(self) -> int | None:
        """The timeline of the last primary that this process has found, over any connection."""
        return primary.timeline_of(self._uri)

    @property
    def connected(self) -> bool:
        """Whether a statement can be sent at once."""
        connection = self._connection
        return connection is not None and not (connection.closed or self._hang_up.poll(0))

    @property
    def busy(self) -> bool:
        """Whether a statement is under way."""
        return self._lock.locked()

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
                async with self._lock:  # `use` would cost more
                    self._used = True
                    connection = self._connection
                    if connection is None or connection.closed or self._hang_up.poll(0):
                        connection = await self._connect()
                    try:
                        rows = await cast(PreparedStatements, self._statements).run(query, params)
                        if connection.doubtful:
                            await self._prove(connection)
                        return rows
                    except BaseException as error:
                        await self._failed(connection, error)
                        raise
            except psycopg.Error as error:
                await _rest(error, chance)
        raise StoreUnavailable(f"a statement lost {tries} races in a row")

    async def look(
        self, query: LiteralString | bytes, params: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Do as `run`, on a server that takes writes: a standby may lack what is committed.

        Raises StoreUnavailable on another one, and as `run` does.
        """
        rows = await self.run(query, params)
        if self.timeline is None:
            await self.close()  # the server may be promoted meanwhile
            raise StoreUnavailable("the server takes no writes, so it may lack what is committed")
        return rows

    async def run_together(
        self, statements: Sequence[tuple[bytes, dict[str, Any]]], *, tries: int = 10
    ) -> list[list[tuple[Any, ...]]]:
        """Run the statements in order, all or none, and return the rows of each.

        All of them go out before the first answer is read. Without BEGIN they are one transaction,
        which ends with the last one, so it waits for no network. A transaction that lost a race
        runs again, up to `tries` times in all. Raises as `run` does.
        """
        for chance in range(tries):
            try:
                async with self.use() as connection:
                    cursors = [connection.cursor(binary=True) for _ in statements]
                    async with connection.pipeline():
                        for cursor, (query, params) in zip(cursors, statements, strict=True):
                            await cursor.execute(query, params, prepare=True)
                    return [await c.fetchall() if c.description else [] for c in cursors]
            except psycopg.Error as error:
                await _rest(error, chance)
        raise StoreUnavailable(f"a transaction lost {tries} races in a row")

    async def prove(self) -> None:
        """Return when all that was committed and visible before is durable, on the standbys too.

        Call it before you believe what you see after a lost answer. Raises Undecided after
        `proof_s` seconds, StoreUnavailable and AnswerLost.
        """
        async with self.use() as connection:
            await self._prove(connection)

    async def _prove(self, connection: LinkConnection) -> None:
        if self._statements:
            self._statements.stop()
        await connection.prove(self.proof_s)

    async def _connect(self) -> LinkConnection:
        """Connect again, before anything is sent: a statement that was sent may be done."""
        try:
            await self.close()
            self._connection = await connect(self._uri, self._name, self._settings)
            self.sessions += 1
            self.timeline = self._connection.timeline
            self._statements = PreparedStatements(self._connection)
            self._hang_up = select.poll()
            self._hang_up.register(self._connection.pgconn.socket, select.POLLRDHUP)
        except psycopg.Error as error:
            raise unavailable(error) from error
        return self._connection

    async def _failed(self, connection: LinkConnection, error: BaseException) -> None:
        """Close a connection that can't be used again, and raise the error that callers get.

        Returns if the error itself is theirs.
        """
        connection.doubtful = False  # the caller gets an error, so nothing has to be proven
        if not isinstance(error, psycopg.Error):
            # after a cancelled or failed statement the state of the protocol is unknown
            libpq = self._connection and self._connection.pgconn
            if libpq and (libpq.transaction_status or libpq.pipeline_status):
                await self.close()
            return
        blocked = blockers.limited(error) and await self._name_blocker(connection, error)
        if faults.lost_race(error) or not (faults.outage(error) or faults.stale(error)):
            return  # the error is about the statement, not about the server
        # also if the error left the connection open: another server may be the right one now
        await self.close()
        if not faults.outage(error):
            return
        if faults.rolled_back(error):
            raise (Blocked if blocked else StoreUnavailable)(_words(error)) from error
        raise AnswerLost(_words(error), connection.backend) from error

    async def _name_blocker(self, connection: LinkConnection, error: psycopg.Error) -> bool:
        """Add a note to an error that names the session that blocks; return whether there is one.

        The statement that waited has ended, so it is in the way of nobody.
        """
        if self._statements:
            self._statements.stop()
        try:
            async with asyncio.timeout(_BLOCKERS_TIMEOUT_S):
                cursor = connection.cursor(row_factory=dict_row)
                await cursor.execute(blockers.query(), prepare=False)
                blocker = blockers.sentence(await cursor.fetchall())
        except (psycopg.Error, TimeoutError):
            return False
        if blocker:
            error.add_note(blocker)
        return bool(blocker)

    async def end_backends(self, backends: list[Backend]) -> None:
        """Return when each statement whose answer was lost is done, or will never be done.

        PostgreSQL ends the connections that broke and that it still works on. A process that has
        ended leaves the list. Raises StoreUnavailable, also if a process has not ended yet.
        """
        while backends:
            pid, began = backends[-1]
            for _ in range(_MAX_LOOKS):
                ((working,),) = await self.run(_END_SESSION, {"pid": pid, "began": began})
                if not working:
                    break
                await asyncio.sleep(_LOOK_INTERVAL_S)
            else:
                raise StoreUnavailable(f"process {pid} of PostgreSQL has not ended yet")
            backends.pop()

    async def close_unused(self) -> None:
        """Close the connection if no statement has begun since the last call."""
        if not (self._used or self.busy):
            async with self._lock:
                await self.close()
        self._used = False

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if self._statements:
            self._statements.end()
            self._statements = None
        if connection:
            await connection.close()


async def connect(uri: str, name: str, settings: dict[str, str] | None = None) -> LinkConnection:
    """Open an autocommit connection that appears as `pgmta NAME` in pg_stat_activity.

    Raises psycopg.Error, also if a pooler stands before the server: settings, prepared statements,
    LISTEN and advisory locks belong to a session.
    """
    await primary.search(uri)
    hosts = primary.writable(uri)
    try:
        connection = await LinkConnection.connect(
            hosts,
            autocommit=True,
            application_name=f"pgmta {name}",
            prepare_threshold=0,
        )
    except psycopg.Error:
        primary.missed(uri, hosts)
        raise
    try:
        check_pooler(connection)
        # not prepared: in the session of a pooler the statement would stay, as settings would
        cursor = await connection.execute(PID, prepare=False)
        ((pid,),) = await cursor.fetchall()
        check_pooler(connection, pid)
        if not in_utf8(connection):
            # the codec has the name of the encoding
            await connection.execute(AS_STORED, prepare=False)
            connection.codec = "" if has_octets(connection) else connection.info.encoding
        try:
            await connection.execute(fitting(settings), prepare=False)
        except psycopg.errors.InsufficientPrivilege as error:
            raise unfit(error) from error
        await connection.execute(LOOK_IN_PGMTA, prepare=False)
        cursor = await connection.execute(_SESSION_START, [list(binary.COMPOSITES)], prepare=False)
        ((began, composites, timeline, noted),) = await cursor.fetchall()
        connection.composites = composites or {}
        connection.backend = (pid, began)
        if timeline and noted not in (None, timeline):
            await connection.execute(primary.NOTE_TIMELINE, prepare=False)
        connection.timeline = timeline
        primary.found(uri, connection, timeline)
    except BaseException:
        await connection.close()
        raise
    connection.hear_doubts()
    binary.register(connection)
    return connection


def unavailable(error: psycopg.Error) -> StoreUnavailable:
    """Return the error of a connection that could not be made."""
    refused = isinstance(error, Pooled) or faults.refuses_login(error)
    return (LoginRefused if refused else StoreUnavailable)(_words(error))


async def _rest(error: psycopg.Error, chance: int) -> None:
    """Wait until a statement runs again; raise an error after which it does not."""
    if not (faults.lost_race(error) or (faults.stale(error) and not chance)):
        raise error
    await asyncio.sleep(0.005 * chance)


def _words(error: psycopg.Error) -> str:
    """Return what the server says in one line; how a connection fails may take several."""
    return faults.one_line(error) if error.sqlstate else str(error).strip() or type(error).__name__
