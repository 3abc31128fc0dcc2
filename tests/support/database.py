"""Databases for tests: a real server, an empty migrated database each."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer
from pgmta.store.admin.migrate import migrate
from tests.support.waiting import until

SERVER_URI = os.environ.get("PGMTA_TEST_URI", "")
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30


def server_uri(directory: Path) -> str:
    """URI of the server under test: the one given, or an embedded one in `directory`.

    The embedded one does not wait for the disk, because no test cuts the power. Databases come and
    go a few times faster. Servers that a test crashes wait for it (PrivateServer).
    """
    if SERVER_URI:
        return SERVER_URI
    server = EmbeddedServer(directory)
    server.start()
    atexit.register(server.stop)
    uri = server.uri(DATABASE)
    with psycopg.connect(uri, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET fsync = off")
        db.execute("ALTER SYSTEM SET min_wal_size = '32MB'")
        db.execute("ALTER SYSTEM SET max_wal_size = '128MB'")
        db.execute("SELECT pg_reload_conf()")
    return uri


def data_folder() -> Path:
    """A new folder for an embedded server's data, which the server's user may pass through.

    It is not below pytest's folder. Another run as root takes the search permission of that folder
    away. A server that runs as another user would lose its data folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="pgmta-test-"))
    folder.chmod(0o711)
    return folder


def memory_folder() -> Path:
    """The same in memory if there is room: a database is made there in a tenth of the time.

    The name has the process. Those of processes that were killed are removed.
    """
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        return data_folder()
    for old in _MEMORY.glob("pgmta-test-*"):
        if not psutil.pid_exists(int(old.name.split("-")[2])):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"pgmta-test-{os.getpid()}-", dir=_MEMORY))
    folder.chmod(0o711)
    return folder


def with_database(uri: str, name: str) -> str:
    """The same server, another database."""
    return make_conninfo(**{**conninfo_to_dict(uri), "dbname": name})  # type: ignore[arg-type]


OCTETS = "ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0"
"""A database that checks no encoding."""


@contextmanager
def fresh_database(server: str, template: str | None = None, options: str = "") -> Iterator[str]:
    """A fresh database, dropped afterwards; `template` names one to copy.

    `options` of CREATE DATABASE are for one with another encoding or locale.
    """
    name = f"pgmta_test_{uuid.uuid4().hex[:12]}"
    copy = sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY")  # half the time of WAL_LOG for 11 MB
    base = copy.format(sql.Identifier(template)) if template else sql.SQL(f" {options}")
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + base)
        if template:  # a copy has the tables, but not the settings of the database
            path = sql.SQL("ALTER DATABASE {} SET search_path = pgmta, public")
            db.execute(path.format(sql.Identifier(name)))
    try:
        yield with_database(server, name)
    finally:
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def template_database(server: str) -> Iterator[str]:
    """Name of a migrated database to copy."""
    with fresh_database(server) as uri:
        migrate(uri)
        yield str(conninfo_to_dict(uri)["dbname"])


@contextmanager
def owned_template(server: str) -> Iterator[tuple[str, str]]:
    """Name of a migrated database, and its owner, who is no superuser.

    The owner may make roles, as docs/operate/database.md says. Roles that another database of the
    server has made are none of the owner's: a superuser shares that of `bind`.
    """
    owner = f"owner_{uuid.uuid4().hex[:8]}"
    with fresh_database(server) as uri, psycopg.connect(server, autocommit=True) as db:
        name = sql.Identifier(str(conninfo_to_dict(uri)["dbname"]))
        role = sql.Identifier(owner)
        db.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE").format(role))
        db.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, role))
        if db.execute("SELECT to_regrole('pgmta_binding') IS NOT NULL").fetchone() == (True,):
            db.execute(sql.SQL("GRANT pgmta_binding TO {}").format(role))
        theirs = make_conninfo(uri, user=owner)
        migrate(theirs)
        yield str(conninfo_to_dict(uri)["dbname"]), owner
        with psycopg.connect(theirs, autocommit=True) as last:
            last.execute("DROP SCHEMA pgmta CASCADE")
        with psycopg.connect(uri, autocommit=True) as last:
            last.execute(sql.SQL("DROP OWNED BY {}").format(role))
    with psycopg.connect(server, autocommit=True) as db:
        if db.execute("SELECT to_regrole('pgmta_binding') IS NOT NULL").fetchone() == (True,):
            db.execute(sql.SQL("REVOKE pgmta_binding FROM {}").format(role))
        db.execute(sql.SQL("DROP ROLE {}").format(role))


class PrivateServer:
    """An embedded PostgreSQL of one test, to be crashed and started again."""

    def __init__(self, directory: Path, model: Path | None = None) -> None:
        """Start one in `directory`: a new one, or a copy of the folder `model`, which is faster."""
        if model:
            subprocess.run(["cp", "-a", f"{model}/.", str(directory)], check=True)
        self.folder = directory
        """Its data and its log."""
        self._server = EmbeddedServer(directory)
        self._server.start()
        self.uri = self._server.uri("pgmta")
        migrate(self.uri)

    def stop(self) -> None:
        """End it as an operator would: its folder may be copied then."""
        self._server.stop()

    def crash(self) -> None:
        """End it without a shutdown checkpoint."""
        self._server.stop("immediate")
        assert not self._server.running()

    def pid(self) -> int:
        """The postmaster's, for signals; 0 if there is none."""
        file = self._server.data / "postmaster.pid"
        return int(file.read_text().split()[0]) if self._server.running() else 0

    def start(self) -> None:
        """Start it again; returns when it takes connections."""
        self._server.start()

    def read_only(self, on: bool) -> None:
        """Turn it read-only, or back, in sessions that there are as well."""
        with psycopg.connect(self.uri, autocommit=True) as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
            db.execute("SELECT pg_reload_conf()")
        until(lambda: self._read_only() is on, describe="the other state")

    def _read_only(self) -> bool:
        with psycopg.connect(self.uri, autocommit=True) as db:
            row = db.execute("SHOW transaction_read_only").fetchone()
            return row == ("on",)
