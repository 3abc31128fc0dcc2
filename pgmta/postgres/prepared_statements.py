"""Statements that a connection has prepared, run by libpq's own functions.

A cursor of psycopg makes new objects for each call. For each answer it makes a timer and a reader
of the socket. That costs as much as most statements of a mail (docs/decisions/intake.md). Here a
statement is prepared once, its values are written by one transformer, and the socket keeps its
reader.

psycopg makes a `Transformer` for each query, and ours lives as long as the connection. Checked with
psycopg 3.3.9; tests/pgmta/test_private_names.py fails when it changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, cast

from psycopg import OperationalError, ProgrammingError
from psycopg import errors as pg_errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from pgmta.postgres.link_connection import LinkConnection

_MAX_PREPARED_STATEMENTS = 100
_COPY_STATUSES = (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH)
_PLACEHOLDER = re.compile(rb"%(?:\((\w+)\)([sbt])|(%)|)")
_FORMATS = {b"s": PyFormat.AUTO, b"b": PyFormat.BINARY, b"t": PyFormat.TEXT}


class _Shape(NamedTuple):
    """A statement with $1 in place of %(name)s; names and formats of its values in this order."""

    text: bytes
    names: tuple[str, ...]
    formats: tuple[PyFormat, ...]


@lru_cache(256)
def _shape(query: bytes) -> _Shape:
    """Return a statement as PostgreSQL reads it. Raises psycopg.ProgrammingError."""
    found: dict[str, tuple[int, PyFormat]] = {}

    def place(match: re.Match[bytes]) -> bytes:
        if match[3]:
            return b"%"
        if not match[1]:
            raise ProgrammingError(f"a lone % in a statement at octet {match.start()}")
        number, _ = found.setdefault(match[1].decode(), (len(found) + 1, _FORMATS[match[2]]))
        return b"$%d" % number

    text = _PLACEHOLDER.sub(place, query)
    return _Shape(text, tuple(found), tuple(form for _, form in found.values()))


class PreparedStatements:
    """Runs the statements of one connection, one at a time.

    Before another user sends on the connection, `stop` gives its socket free.
    """

    def __init__(self, connection: LinkConnection) -> None:
        self._connection = connection
        self._libpq = connection.pgconn
        self._number = connection.pgconn.socket
        self._values = Transformer(connection)
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._prepared = 0  # number of statements so far, for their names
        self._loop = asyncio.get_running_loop()
        self._reads = self._writes = False
        self._answer: asyncio.Future[None] | None = None
        self._results: list[PGresult] = []

    async def run(
        self, query: str | bytes, params: Mapping[str, Any] | None
    ) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows, read in binary form. Raises psycopg.Error."""
        if isinstance(query, str):
            query = query.encode(self._values.encoding)
        shape = _Shape(query, (), ()) if params is None else _shape(query)
        types: tuple[int, ...] = ()
        values = formats = None
        if shape.names:
            given = [cast(Mapping[str, Any], params)[name] for name in shape.names]
            values = self._values.dump_sequence(given, shape.formats)
            types, formats = self._values.types or (), self._values.formats
        name = self._names.get((shape.text, types))
        if name is None:
            name = await self._prepare(shape.text, types)
        self._libpq.send_query_prepared(name, values, formats, result_format=Format.BINARY)
        result = await self._result()
        if result.status != ExecStatus.TUPLES_OK:
            return []
        try:
            self._values.set_pgresult(result, format=Format.BINARY)
            return self._values.load_rows(0, result.ntuples, tuple)
        finally:
            self._values.set_pgresult(None)  # frees the octets of the result with its rows

    async def _prepare(self, text: bytes, types: tuple[int, ...]) -> bytes:
        while len(self._names) >= _MAX_PREPARED_STATEMENTS:
            oldest = next(iter(self._names))
            self._libpq.send_query(b"DEALLOCATE " + self._names.pop(oldest))
            await self._result()
        self._prepared += 1
        name = b"pgmta_%d" % self._prepared
        self._libpq.send_prepare(name, text, types)
        try:
            await self._result()
        except asyncio.CancelledError:
            self._finish()  # because the server may have the statement already
            raise
        self._names[text, types] = name
        return name

    async def _result(self) -> PGresult:
        """Return the last result of the command under way. Raises psycopg.Error."""
        answer = self._answer = self._loop.create_future()
        self._results = []
        if self._libpq.flush():  # the socket does not take all of it at once
            self._loop.add_writer(self._number, self._writable)
            self._writes = True
        if not self._reads:
            self._loop.add_reader(self._number, self._readable)
            self._reads = True
        try:
            await answer
        except asyncio.CancelledError:
            if self._libpq.transaction_status == TransactionStatus.ACTIVE:
                await self._give_up()
            raise
        results, self._results = self._results, []  # not kept, because results may be large
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise pg_errors.error_from_result(result, self._values.encoding)
        return results[-1]

    def _writable(self) -> None:
        try:
            if not self._libpq.flush():
                self._loop.remove_writer(self._number)
                self._writes = False
        except BaseException as error:
            self._fail(error)

    def _readable(self) -> None:
        answer = self._answer
        if answer is None:
            self.stop()  # the connection ended, or a notice came: the next statement sees which
            return
        if answer.done():
            return  # the statement was cancelled a moment ago
        try:
            while True:
                self._libpq.consume_input()
                while not self._libpq.is_busy():
                    result = self._libpq.get_result()
                    if result is None:
                        self._answer = None
                        answer.set_result(None)
                        return
                    if result.status in _COPY_STATUSES:
                        self._finish()
                        raise ProgrammingError("COPY is no statement for a link")
                    self._results.append(result)
                if not self._connection.broken:
                    return
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        # at once: libpq may have closed the socket, and another may soon have its number
        self.stop()
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if any(result.status == ExecStatus.FATAL_ERROR for result in self._results):
            answer.set_result(None)  # with what the server said before it closed
        else:
            answer.set_exception(error)

    def stop(self) -> None:
        """Leave the socket to others, until the next statement runs."""
        if self._reads:
            self._reads = False
            with suppress(OSError):  # libpq may have closed the socket
                self._loop.remove_reader(self._number)
        if self._writes:
            self._writes = False
            with suppress(OSError):
                self._loop.remove_writer(self._number)

    def end(self) -> None:
        """Do the same, and fail a statement under way: its connection closes."""
        self._fail(OperationalError("the connection was closed"))

    async def _give_up(self) -> None:
        answer = self._answer = self._loop.create_future()
        try:
            await self._connection.give_up(lambda: answer)
        finally:
            self._answer = None
            if self._connection.closed:
                self.stop()

    def _finish(self) -> None:
        self.stop()
        self._libpq.finish()
