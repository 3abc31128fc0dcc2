"""One data directory of the embedded PostgreSQL, and the server on it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pgmta.errors import ServerRefused, StoreUnavailable
from pgmta.postgres.embedded.folders import locked, make_file, make_private, open_own, user_name
from pgmta.postgres.embedded.programs import Programs, forget_variables

COMMAND = "queuectl database run"
"""The command whose process owns a server."""

DATABASE = "pgmta"
OWNER = "postgres"
"""The role that owns the database; a superuser."""

_START_TIMEOUT_S = 300  # crash recovery of a large queue takes long
_STOP_TIMEOUT_S = 300  # the checkpoint at the end may take long
_LOOK_INTERVAL_S = 0.05  # at a server that starts or ends
_ORPHANS_TIMEOUT_S = 1.0  # for the processes of a dead postmaster to end by themselves
_KILL_TIMEOUT_S = 5.0  # for these processes to end by SIGKILL
_SOCKET_NAME = ".s.PGSQL.5432"
_MAX_SOCKET_PATH_OCTETS = 100  # sun_path has 108; the rest is for names of temporary files
_LOCK_NAME = "postgres.lock"
_RUN = Path("/run")
_HAS_PROC = os.path.exists(f"/proc/{os.getpid()}/cwd")

# Chosen for a queue: many small commits, hot rows that die young. Durability stays at its default.
# With wal_level minimal the server drops written WAL from the page cache, and the next WAL takes
# that memory. If fresh memory is expensive, as on virtual machines, that saves up to a third of the
# work (docs/decisions/embedded-server.md). There is no replica that would read the WAL.
# A queue is in memory and reads little from the disk, so that processes and handles for reads would
# take memory for nothing. So would predicate locks.
_SETTINGS = """
listen_addresses = ''
max_connections = 200
max_prepared_transactions = 50
max_pred_locks_per_transaction = 16
shared_buffers = 160MB
io_method = sync
io_max_concurrency = 8
wal_level = minimal
wal_buffers = 2MB
max_wal_senders = 0
max_logical_replication_workers = 0
max_wal_size = 2GB
min_wal_size = 256MB
checkpoint_timeout = 15min
jit = off
idle_in_transaction_session_timeout = 60s
log_checkpoints = off
"""


class EmbeddedServer:
    """A data directory and the server on it.

    The server inherits the lock of `postgres.lock`: no other process has it, for as long as one of
    its processes lives (docs/decisions/embedded-server.md). The owner alone calls `start`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "postgres"
        self.log = directory / "postgres.log"
        self._programs = Programs()
        self.sockets = self.data
        if len(str(self.data)) > _MAX_SOCKET_PATH_OCTETS - len(_SOCKET_NAME) - 1:
            digest = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
            # only root may make folders in /run
            root = os.geteuid() == 0 and os.access(_RUN, os.W_OK)
            folder = _RUN if root else Path(tempfile.gettempdir())
            self.sockets = folder / f"pgmta-{digest}"

    def uri(self, database: str, role: str = OWNER) -> str:
        """Return a connection URI over the UNIX socket, without a secret: authentication is `peer`.

        The client refuses a server that another user of the system runs. The process forgets
        libpq's environment variables, which are about another server.
        """
        forget_variables()
        folder, server = quote(str(self.sockets), safe=""), quote(self._user())
        return f"postgresql://{role}@/{database}?host={folder}&requirepeer={server}"

    def exists(self) -> bool:
        """Return whether there is a data directory."""
        return (self.data / "PG_VERSION").exists()

    def running(self) -> bool:
        """Return whether a postmaster works on the data directory, without starting a process."""
        try:
            number = abs(int(self._pid_file()[0]))  # negative: postgres --single
            if not _HAS_PROC:
                os.kill(number, 0)
                return True
            # any process may have the number by now; only a postmaster works in its data directory
            return os.path.samestat(os.stat(f"/proc/{number}/cwd"), self.data.stat())
        except PermissionError:  # for root without CAP_SYS_PTRACE, as in a container
            return self._has_processes()
        except (OSError, ValueError, IndexError):
            return False

    def _has_processes(self) -> bool:
        """Return whether a process of the server holds its lock."""
        lock = open_own(self.directory / _LOCK_NAME)
        try:
            return not locked(lock)
        finally:
            os.close(lock)

    def answers(self) -> bool:
        """Return whether a server listens on the socket, in this container or in another one.

        Raises ServerRefused if the server is another user's.
        """
        if self.exists():
            self._check_user(self._user())
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.sockets / _SOCKET_NAME)) == 0

    def open_end(self) -> int | None:
        """Return a descriptor that can be read once the postmaster has ended.

        Returns None if none runs, or where the system reports no end of processes.
        """
        try:
            end = os.pidfd_open(abs(int(self._pid_file()[0])))
        except (AttributeError, OSError, ValueError, IndexError):
            return None
        if self.running():  # otherwise another process may have the number of the postmaster
            return end
        os.close(end)
        return None

    def start(self, roles: Sequence[str] = ()) -> bool:
        """Create the data directory, start the server and create the database, if needed.

        `roles` may log in afterwards. Returns whether the server had to be started. Raises
        StoreUnavailable with the end of the server's log, or ServerRefused.
        """
        self._programs.check_name(self.data)
        if not self.exists():
            self._create()
        self._check_user(self._programs.owner().pw_name)
        started = self._bring_up()
        self._furnish(roles)
        return started

    def stop(self, mode: str = "fast", patience_s: int = _STOP_TIMEOUT_S) -> None:
        """Stop the server, if it runs: `fast` ends sessions, `immediate` crashes it (for tests).

        `smart` waits for their end. After `patience_s` the server may still be about to end.

        Another process may have the number that a killed server has left. pg_ctl would signal that
        process, and wait for its end.
        """
        with suppress(subprocess.CalledProcessError, FileNotFoundError):
            if self.running():
                self._control("-w", "-t", str(patience_s), "-m", mode, "stop")

    def _control(self, *arguments: str, keep: Sequence[int] = ()) -> None:
        """Run pg_ctl on the data directory. Raises CalledProcessError."""
        with self._programs.way(self.data) as (data, own):
            self._programs.run_program("pg_ctl", "-D", data, "-s", *arguments, keep=[*own, *keep])

    def _pid_file(self) -> list[str]:
        """Return the lines of postmaster.pid."""
        return (self.data / "postmaster.pid").read_text(errors="replace").splitlines()

    def _ready(self) -> bool:
        """Return whether the postmaster has noted that it takes connections, as pg_ctl does."""
        with suppress(OSError):
            return self._pid_file()[7:8] == ["ready   "] and self.running()
        return False

    # -- making the data directory --

    def _create(self) -> None:
        """Make the data directory under another name and rename it, so that no half one is used."""
        if self.data.exists() and any(self.data.iterdir()):
            raise ServerRefused(f"{self.data} is not empty and holds no PostgreSQL data")
        owner, new = self._programs.owner(), self.data.with_name("postgres.new")
        try:
            if new.exists():
                shutil.rmtree(new)
            make_private(new, owner.pw_uid, owner.pw_gid)
            with self._programs.way(new) as (data, keep):
                self._programs.run_program(
                    "initdb", "-D", data, "-U", OWNER, "--encoding=UTF8", "--no-locale",
                    "--auth-local=peer", "--auth-host=reject", "--no-instructions",
                    keep=keep,
                )  # fmt: skip
            self._programs.write_file(new / "postgresql.auto.conf", _SETTINGS, append=True)
            self._programs.write_file(new / "pg_hba.conf", "local all all peer map=pgmta\n")
            new.rename(self.data)
            folder = os.open(self.directory, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            raise ServerRefused(f"can't make {self.data}: {error.strerror or error}") from None
        except subprocess.CalledProcessError as error:
            raise StoreUnavailable(f"can't make {self.data}: {error.stderr.strip()}") from None

    def _user(self) -> str:
        """Return the name of the user as whom this process would run the server."""
        return self._programs.user or user_name(os.geteuid())

    def _check_user(self, name: str) -> None:
        """Raise ServerRefused unless the user `name` owns the data."""
        user = user_name(self.data.stat().st_uid)
        if user != name:
            raise ServerRefused(
                f"{self.data} belongs to the user {user}, and the embedded PostgreSQL would run as "
                f"{name}: run the command as {user} (`runuser -u {user} -- COMMAND`), or "
                "with another environment.directory"
            )

    # -- starting --

    def _bring_up(self) -> bool:
        """Wait until the server takes connections; return whether it was started here."""
        end = time.monotonic() + _START_TIMEOUT_S
        while not self._ready():
            if time.monotonic() > end:
                raise StoreUnavailable(f"the embedded PostgreSQL in {self.data} is not ready yet")
            if self.running():
                time.sleep(_LOOK_INTERVAL_S)
                continue
            lock = open_own(self.directory / _LOCK_NAME)
            try:
                if locked(lock):
                    self._launch(lock)
                    return True
                _end_orphans(self.data, lock, self.directory / _LOCK_NAME)
            finally:
                os.close(lock)
        return False

    def _launch(self, lock: int) -> None:
        owner = self._programs.owner()
        if self.sockets != self.data:
            make_private(self.sockets, owner.pw_uid, owner.pw_gid)
        _remove_leftovers(self.data, self.sockets)
        make_file(self.log, owner.pw_uid, owner.pw_gid)
        self._map(reload=False)
        try:
            with (
                self._programs.way(self.sockets) as (sockets, one),
                self._programs.way(self.log) as (log, other),
            ):
                self._control(
                    "-w", "-t", str(_START_TIMEOUT_S), "-l", log,
                    "-o", shlex.join(["-k", sockets]), "start",
                    keep=[lock, *one, *other],
                )  # fmt: skip
        except subprocess.CalledProcessError:
            tail = self.log.read_text(errors="replace").splitlines()[-8:]
            raise StoreUnavailable(
                f"the embedded PostgreSQL in {self.data} did not start:\n" + "\n".join(tail)
            ) from None

    # -- what the database needs to have --

    def _furnish(self, roles: Sequence[str]) -> None:
        """Create the database, and let `roles` log in; the migrations give them their rights.

        By psql: the owner of the server does without psycopg.
        """
        self._map(reload=True)
        script = f"SELECT 'CREATE DATABASE {DATABASE}' WHERE NOT EXISTS"
        script += f" (SELECT FROM pg_database WHERE datname = '{DATABASE}') \\gexec\n"
        for role in roles:
            script += f"SELECT 'CREATE ROLE {role}' WHERE to_regrole('{role}') IS NULL \\gexec\n"
            script += f"ALTER ROLE {role} LOGIN;\n"
        try:
            with self._programs.way(self.sockets) as (folder, keep):
                place = f"host='{folder}' user={OWNER} dbname=postgres"
                self._programs.run_program(
                    "psql", "-Xq", "-v", "ON_ERROR_STOP=1", place, keep=keep, given=script
                )
        except subprocess.CalledProcessError as error:
            raise StoreUnavailable(error.stderr.strip()) from None

    def _map(self, *, reload: bool) -> None:
        """Let this user and the server's log in as any role; `peer` proves who they are."""
        path = self.data / "pg_ident.conf"
        names = {user_name(os.geteuid()), self._programs.owner().pw_name}
        lines = {f"pgmta {name} all" for name in names}
        if missing := sorted(lines - set(path.read_text(errors="replace").splitlines())):
            try:
                self._programs.write_file(
                    path, "".join(f"{line}\n" for line in missing), append=True
                )
                if reload:
                    self._control("reload")
            except subprocess.CalledProcessError as error:
                reason = (error.stderr or str(error)).strip()
                raise StoreUnavailable(f"can't add to {path}: {reason}") from None


def _remove_leftovers(data: Path, sockets: Path) -> None:
    """Remove the files of a killed server; its lock has shown that no process of it lives.

    PostgreSQL itself trusts a leftover file if another process has its number by now. It refuses
    to start because of a file that a full disk left empty.
    """
    for path in (data / "postmaster.pid", sockets / f"{_SOCKET_NAME}.lock", sockets / _SOCKET_NAME):
        path.unlink(missing_ok=True)


def _end_orphans(data: Path, lock: int, path: Path) -> None:
    """Wait for processes on `data` that have outlived their postmaster, and kill the others.

    Their `lock` is the open file `path`. Raises StoreUnavailable if one does not end.
    """
    if _released(lock, _ORPHANS_TIMEOUT_S):
        return
    for number in _orphans(data):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    if not _released(lock, _KILL_TIMEOUT_S):
        names = shlex.join(["fuser", str(path)])
        raise StoreUnavailable(
            f"processes of an earlier server still work on {data}: `{names}` names them"
        )


def _orphans(data: Path) -> list[int]:
    status, found = data.stat(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            here = os.path.samestat((entry / "cwd").stat(), status)
            if here and (entry / "comm").read_text().strip() == "postgres":
                found.append(int(entry.name))
    return found


def _released(lock: int, seconds: float) -> bool:
    """Return whether all processes let go of the lock within that time."""
    end = time.monotonic() + seconds
    while not locked(lock):
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_INTERVAL_S)
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
