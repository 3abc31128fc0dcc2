"""The PostgreSQL server of a run, and a fresh database on it for each phase."""

import atexit
import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from bench.progress import Progress, log
from pgmta.errors import PgmtaError
from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
URI = re.compile(r"(postgres(?:ql)?://[^/?]*)(?:/[^?]*)?(\?.*)?", re.DOTALL)


class DatabaseError(RuntimeError):
    """The server cannot be used for the bench."""


@dataclass(frozen=True)
class Server:
    """A running server: its URI, the postmaster when local, and its version."""

    uri: str
    postmaster: int | None
    version: str


def _connect(uri: str) -> psycopg.Connection[Any]:
    return psycopg.connect(uri, autocommit=True, connect_timeout=10)


def _ask(connection: psycopg.Connection[Any], query: LiteralString) -> Any:
    row = connection.execute(query).fetchone()
    return row[0] if row else None


def with_database(uri: str, name: str) -> str:
    """Return the URI with another database name."""
    match = URI.fullmatch(uri)
    if not match:
        raise DatabaseError(f"not a PostgreSQL URI: {uri}")
    return f"{match[1]}/{name}{match[2] or ''}"


def _postmaster(directory: Path) -> int | None:
    """Return the process whose data directory that is, if it lives on this machine."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = int((directory / "postmaster.pid").read_text().splitlines()[0])
        if Path(f"/proc/{pid}/comm").read_text().startswith("postgres"):
            return pid
    return None


def open_server(uri: str | None, directory: Path) -> Server:
    """Start the embedded server in the directory, or take the one at the URI."""
    data = directory / "postgres"
    if uri is None:
        server = EmbeddedServer(directory)
        try:
            server.start()
        except PgmtaError as error:
            raise DatabaseError(f"the embedded database does not start: {error}") from error
        atexit.register(server.stop)
        uri = server.uri(DATABASE)
    check_durability(uri)
    with _connect(uri) as connection:
        if not data.is_dir():
            with contextlib.suppress(psycopg.Error):
                data = Path(str(_ask(connection, "SHOW data_directory")))
        return Server(uri, _postmaster(data), str(_ask(connection, "SHOW server_version")))


@contextlib.contextmanager
def fresh(server: Server, keep: bool) -> Iterator[str]:
    """Make an empty database, give its URI, and drop it at the end."""
    name = f"bench_{os.getpid()}_{secrets.token_hex(3)}"
    quoted = psycopg.sql.Identifier(name)
    with _connect(server.uri) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(quoted))
    try:
        yield with_database(server.uri, name)
    finally:
        if not keep:
            with _connect(server.uri) as connection:
                connection.execute(
                    psycopg.sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(quoted)
                )


def check_durability(uri: str) -> None:
    """Refuse a database where a commit may be lost; also asks the settings of role and database."""
    with _connect(uri) as connection:
        for name, value in DURABLE.items():
            row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            if not row or row[0] != value:
                raise DatabaseError(f"{name} is {row[0] if row else '?'}, the bench wants {value}")


def fill(uri: str, rows: int) -> None:
    """Queue that many messages for dead.example, whose next hop refuses connections."""
    progress = Progress("fill", rows)
    with _connect(uri) as connection:
        for first in range(1, rows + 1, 100_000):
            last = min(rows, first + 99_999)
            insert(connection, first, last, "dead.example")
            progress.show(last)
    if rows:
        progress.end()


def insert(connection: psycopg.Connection[Any], first: int, last: int, domain: str) -> None:
    """Queue a message per number, which its id and its recipient contain."""
    connection.execute(
        """
        WITH numbers AS (
            SELECT 1000000000000 + generate_series(%s::bigint, %s::bigint) AS id
        ), bodies AS (
            INSERT INTO messages (id, size, trace, body)
            SELECT id, 20, E'Received: by bench\\r\\n', E'Subject: waiting\\r\\n\\r\\n'
            FROM numbers
        )
        INSERT INTO queue (message_id, sender, recipient, domain)
        SELECT id, 'source@bench.example', id || '@' || %s, %s FROM numbers
        """,
        [first, last, domain, domain],
    )


def rest(uri: str) -> None:
    """Let a database that was just filled do now what it would do during the measurement."""
    log("vacuum and checkpoint, not measured")
    with _connect(uri) as connection:
        connection.execute("VACUUM (ANALYZE)")
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute("CHECKPOINT")


class Watch:
    """Counts rows and collects the server's own figures during one phase."""

    def __init__(self, uri: str) -> None:
        self._connection = _connect(uri)
        with contextlib.suppress(psycopg.Error):
            self._connection.execute("CHECKPOINT")
        self._before = self._figures()

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def counts(self) -> tuple[int, int]:
        """Return the number of rows in messages and in queue, those of the backlog not counted."""
        return (
            int(_ask(self._connection, "SELECT count(*) FROM messages WHERE id < 1000000000000")),
            int(
                _ask(self._connection, "SELECT count(*) FROM queue WHERE domain <> 'dead.example'")
            ),
        )

    def wait_empty(self, seconds: float) -> bool:
        """Wait until both tables are empty."""
        end = time.monotonic() + seconds
        while self.counts() != (0, 0):
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    def _figures(self) -> dict[str, float]:
        queries: dict[str, LiteralString] = {
            "commits": "SELECT xact_commit FROM pg_stat_database WHERE datname=current_database()",
            "WAL syncs": "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'",
            "WAL KB": "SELECT wal_bytes / 1024 FROM pg_stat_wal",
        }
        figures: dict[str, float] = {}
        for name, query in queries.items():
            with contextlib.suppress(psycopg.Error, TypeError):
                figures[name] = float(_ask(self._connection, query))
        return figures

    def spent(self) -> dict[str, float]:
        """Return what the server counted since the start (complete once its clients have left)."""
        now = self._figures()
        return {name: now[name] - self._before[name] for name in self._before if name in now}
