"""The database for the API: each transaction acts for the key of its request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pgmta.errors import Blocked, LoginRefused, StoreUnavailable, SubmissionError, Undecided
from pgmta.postgres import faults
from pgmta.postgres.link import Link
from pgmta.postgres.link_connection import LinkConnection
from pgmta.postgres.operator import OperatorConnection, connected
from pgmta.postgres.resources import Resources
from pgmta.store.changes.sql_interface import refused
from pgmta.store.schema import Schema
from pgmta_features.http_api.caller import Caller
from pgmta_features.http_api.problem import Problem, away, conflict, pointer_of, sentences

STATEMENT_TIMEOUT_S = 2.0
"""For a statement, unless its caller says otherwise."""

_LOCK_TIMEOUT_S = 1.0
_MAX_SHARE = 3  # connections of those who ask for long, and of those who ask often
_WAIT_TIMEOUT_S = 5.0  # for a free connection
_MORE_TIME_S = 6.0  # for a connection, and for a server that does not answer at all
_RETRY_S = 2  # for a client whose request met a lock or took too long
_BEGIN = (
    "SELECT set_config('pgmta.acting', %(acting)s, true),"
    " set_config('statement_timeout', %(statement_ms)s, true),"
    " set_config('lock_timeout', %(lock_ms)s, true)"
)
_BEGIN_OPERATOR = (
    "SELECT set_config('pgmta.acting', %(acting)s, false),"
    " set_config('application_name', 'pgmta api', false),"
    " set_config('statement_timeout', %(statement_ms)s, false),"
    " set_config('lock_timeout', %(lock_ms)s, false)"
)
_STATE_ERRORS = (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.UniqueViolation)
_FOR_OPERATORS = re.compile("`?(?:docs/|queuectl )")  # begins what a shop does not have
_IN_JSON = {"from_": "from"}


class ApiSession:
    """A transaction that acts for a key. Rows are mappings by column."""

    def __init__(self, connection: LinkConnection, pipeline: psycopg.AsyncPipeline) -> None:
        self._connection = connection
        self._pipeline = pipeline

    async def rows(
        self, sql: bytes | str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> list[dict[str, Any]]:
        """Run a statement and return its rows. Raises psycopg.Error."""
        cursor = self._connection.cursor(binary=True, row_factory=dict_row)
        text = sql.encode() if isinstance(sql, str) else bytes(sql)
        await cursor.execute(text, params, prepare=True)
        await self._pipeline.sync()
        return await cursor.fetchall() if cursor.description else []

    async def row(
        self, sql: bytes | str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> dict[str, Any] | None:
        """Run a statement and return its first row, or None. Raises psycopg.Error."""
        found = await self.rows(sql, params)
        return found[0] if found else None

    async def value(self, sql: bytes | str, params: Mapping[str, Any] | Sequence[Any] = ()) -> Any:
        """Run a statement and return the first column of its first row, or None.

        Raises psycopg.Error.
        """
        found = await self.row(sql, params)
        return next(iter(found.values())) if found else None


class ApiDatabase:
    """Lends transactions over a few connections."""

    def __init__(self, resources: Resources, schema: Schema, connections: int) -> None:
        self._schema = schema
        self._uri = resources.uri
        self._operators = asyncio.Semaphore(connections)
        self.searches = asyncio.Semaphore(_MAX_SHARE)
        """Places of those who ask for long."""
        self.readers = asyncio.Semaphore(_MAX_SHARE)
        """Places of readers of events."""
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for number in reversed(range(connections)):
            self._free.put_nowait(resources.link(f"api {number}"))

    @asynccontextmanager
    async def acting(
        self,
        caller: Caller,
        *,
        timeout_s: float = STATEMENT_TIMEOUT_S,
        places: asyncio.Semaphore | None = None,
    ) -> AsyncIterator[ApiSession]:
        """Lend a transaction that acts for the caller, and commit it at the end.

        Each of its statements has `timeout_s`. With `places` it takes one of these: who asks for
        long or often leaves connections to others. Nothing but its statements may be awaited
        inside. Statements go out with the BEGIN, so one costs two round trips. After an error no
        other statement runs in it.

        Raises Problem: 503 while the database is away, takes too long, or is locked; 422 with a
        pointer for an argument that it refuses. Raises psycopg.Error for others.
        """
        async with (
            self._lent(places.acquire, lambda _: places.release()) if places else nullcontext(),
            self._lent(self._free.get, self._free.put_nowait) as link,
        ):
            try:
                async with (
                    asyncio.timeout(timeout_s + _MORE_TIME_S),
                    link.use() as connection,
                    connection.pipeline() as pipeline,
                    connection.transaction(),
                ):
                    await connection.execute(_BEGIN, _settings(caller, timeout_s), prepare=True)
                    yield ApiSession(connection, pipeline)
            except TimeoutError:
                raise away() from None

    @asynccontextmanager
    async def operating(
        self, caller: Caller, *, timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> AsyncIterator[OperatorConnection]:
        """Lend a connection as the commands of queuectl have it, in autocommit, for the caller.

        It is for what is asked seldom, because each is made anew. All is durable at its end. Raises
        as `acting` does, and 409 for what the state of a thing does not allow.
        """
        operators = self._operators
        async with self._lent(operators.acquire, lambda _: operators.release()):
            try:
                async with connected(self._uri) as db:
                    await db.execute(_BEGIN_OPERATOR, _settings(caller, timeout_s))
                    yield db
            except _STATE_ERRORS as error:
                hint = error.diag.message_hint or ""
                if "queuectl" in hint:  # which clients do not have
                    hint = ""
                raise conflict(sentences(error.diag.message_primary, hint)) from error

    @asynccontextmanager
    async def _lent[T](
        self, take: Callable[[], Awaitable[T]], give_back: Callable[[T], None]
    ) -> AsyncIterator[T]:
        """Lend one of a few things while the database is there. Raises as `acting` does."""
        if self._schema.problem:
            raise away()
        try:
            async with asyncio.timeout(_WAIT_TIMEOUT_S):
                found = await take()
        except TimeoutError:
            raise _busy("All connections to the database are in use.") from None
        try:
            yield found
        except Blocked:
            raise _busy("Another transaction has it.") from None
        except (StoreUnavailable, LoginRefused, psycopg.Error) as error:
            if problem := _problem(error):
                raise problem from error
            raise
        finally:
            give_back(found)


def _settings(caller: Caller, timeout_s: float) -> dict[str, str]:
    return {
        "acting": caller.acting, "statement_ms": str(round(timeout_s * 1000)),
        "lock_ms": str(round(_LOCK_TIMEOUT_S * 1000)),
    }  # fmt: skip


def problem_of(error: SubmissionError) -> Problem:
    """Return the problem of an argument that the database refuses."""
    argument = _IN_JSON.get(error.argument, error.argument)
    path = [int(part) if part.isdecimal() else part for part in argument.split(".") if part]
    hint = _FOR_OPERATORS.split(error.hint, maxsplit=1)[0].rstrip(" :,;")
    detail = sentences(error.reason, error.detail, hint)
    pointer = pointer_of(*path)
    errors = [{"pointer": pointer, "detail": detail}] if pointer else []
    return Problem(422, "invalid", f"{argument}: {detail}" if argument else detail,
                   pointer=pointer, errors=errors)  # fmt: skip


def _problem(error: StoreUnavailable | LoginRefused | psycopg.Error) -> Problem | None:
    """Return what the client gets; None for a defect."""
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    if isinstance(cause, psycopg.errors.QueryCanceled):
        return Problem(
            503, "timeout", "The database took too long for it. Ask for less, or later.",
            headers={"Retry-After": str(_RETRY_S)},
        )  # fmt: skip
    if isinstance(error, Undecided):
        # nothing is claimed about what was asked for: it may be done
        return Problem(
            503, "database-away", "The database went away, and it is open whether it was done.",
            headers={"Retry-After": str(_RETRY_S)},
        )  # fmt: skip
    if isinstance(error, StoreUnavailable | LoginRefused):
        return away()
    if faults.locked(error) or faults.lost_race(error):
        return _busy("Another transaction has it.")
    found = refused(error)
    if isinstance(found, SubmissionError):
        return problem_of(found)
    return None


def _busy(detail: str) -> Problem:
    return Problem(503, "busy", detail, headers={"Retry-After": str(_RETRY_S)})
