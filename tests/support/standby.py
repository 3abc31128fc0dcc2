"""A primary and its standby: both real, of the release that the tests run on."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from pgmta.postgres.embedded.programs import POSTGRES_VERSION, Programs
from pgmta.store.admin.migrate import migrate
from tests.support.database import memory_folder
from tests.support.waiting import until

_DEBIAN = "/usr/lib/postgresql/{}/bin"
_SETTINGS = """
listen_addresses = ''
wal_level = logical
max_wal_senders = 4
max_prepared_transactions = 4
wal_receiver_status_interval = 1
max_connections = 60
shared_buffers = 16MB
min_wal_size = 32MB
fsync = off
jit = off
"""
_SYNCHRONOUS = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'"
_WAITING = """
SELECT pid, query_start FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = 'pgmta'
"""


class _Debian(Programs):
    """The programs of a package of Debian."""

    def __init__(self, release: int) -> None:
        super().__init__()
        self._folder = Path(_DEBIAN.format(release))

    def _bin(self) -> Path:
        return self._folder


class Node:
    """One of the two servers; its socket is in its folder."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self.folder, self._programs = folder, programs
        owner = programs.owner()
        folder.chmod(0o711)
        shutil.chown(folder, owner.pw_uid, owner.pw_gid)
        self.data = folder / "data"
        self.host = str(folder)
        self.uri = make_conninfo(host=self.host, user="postgres", dbname="pgmta")

    def run(self, command: str, *arguments: str) -> None:
        self._programs.run_program(command, *arguments)

    def control(self, *arguments: str) -> None:
        """Run pg_ctl."""
        self.run("pg_ctl", "-D", str(self.data), "-s", *arguments)

    def start(self) -> None:
        self.control("-w", "-l", f"{self.folder}/log", "-o", f"-k {self.folder}", "start")

    def follow(self, primary: Node) -> None:
        """Start it as the standby of another."""
        line = f"primary_conninfo = '{make_conninfo(primary.uri, dbname='postgres')}'\n"
        self._programs.write_file(self.data / "postgresql.auto.conf", line, append=True)
        self._programs.write_file(self.data / "standby.signal", "")
        self.start()

    def copy(self, primary: Node) -> None:
        """Start as the standby of another, from a copy of that."""
        source = make_conninfo(primary.uri, dbname="postgres")
        self.run(
            "pg_basebackup", "-D", str(self.data), "-d", source, "-X", "stream", "-c", "fast",
            "--no-sync",
        )  # fmt: skip
        self.follow(primary)

    def crash(self) -> None:
        """End it at once, if it runs."""
        with suppress(Exception):
            self.control("-w", "-m", "immediate", "stop")

    def kill(self) -> None:
        """Kill all its processes, stopped ones too."""
        postmaster = self.process()
        processes = [postmaster, *postmaster.children()]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)

    def process(self) -> psutil.Process:
        return psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))


class Pair:
    """A primary whose commits wait for the standby, or not. The test's own sessions do not wait."""

    def __init__(self, folder: Path, release: int, *, synchronous: bool = True) -> None:
        programs = Programs() if release == POSTGRES_VERSION else _Debian(release)
        places = [folder / name for name in ("primary", "standby")]
        for place in places:
            place.mkdir()
        self.primary, self.standby = (Node(place, programs) for place in places)
        self._make()
        if synchronous:
            self._wait_for_standby()
        self.uri = self.primary.uri
        """For programs under test."""
        hosts = ",".join(node.host for node in (self.primary, self.standby))
        self.either = make_conninfo(self.uri, host=hosts, target_session_attrs="read-write")
        """The same, and after the promotion the former standby."""
        self.db = self.connect(self.primary)

    def _make(self) -> None:
        primary, standby = self.primary, self.standby
        primary.run(
            "initdb", "-D", str(primary.data), "-U", "postgres", "--auth=trust", "--no-locale",
            "--encoding=UTF8", "--no-sync", "--no-instructions",
        )  # fmt: skip
        primary._programs.write_file(primary.data / "postgresql.auto.conf", _SETTINGS, append=True)
        primary.start()
        own = make_conninfo(primary.uri, dbname="postgres")
        with psycopg.connect(own, autocommit=True) as db:
            db.execute("CREATE DATABASE pgmta")
        migrate(primary.uri)
        standby.copy(primary)

    def _wait_for_standby(self) -> None:
        own = make_conninfo(self.primary.uri, dbname="postgres")
        with psycopg.connect(own, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            db.execute("SELECT pg_reload_conf()")
            until(lambda: db.execute(_SYNCHRONOUS).fetchall())

    @staticmethod
    def connect(node: Node, **options: Any) -> psycopg.Connection[Any]:
        """Return a session whose own commits wait for no standby."""
        uri = make_conninfo(node.uri, options="-c synchronous_commit=local")
        return psycopg.connect(uri, autocommit=True, **options)

    def freeze(self) -> None:
        """Have the standby receive nothing; its connection stays."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            for process in self.standby.process().children():
                process.send_signal(number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the standby meanwhile."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def waiting(self) -> list[tuple[Any, ...]]:
        """Return the commits that wait for the standby, once there are any."""
        return until(self.looking)

    def looking(self) -> list[tuple[Any, ...]]:
        """Return those that wait now: process, and the time of its statement."""
        return self.db.execute(_WAITING).fetchall()

    def cancel(self) -> None:
        """Cancel the waits: each commit "succeeds", with a warning."""
        self._end("pg_cancel_backend")

    def terminate(self) -> None:
        """End the sessions that wait; their commits have happened."""
        self._end("pg_terminate_backend")

    def _end(self, function: str) -> None:
        found = self.waiting()
        for process, _ in found:
            self.db.execute(f"SELECT {function}(%s)".encode(), (process,))
        until(lambda: not set(found) & set(self.looking()))

    def fail_over(self) -> psycopg.Connection[Any]:
        """Kill the primary and promote the standby; return a session there.

        What was on its way to the standby is lost, as it would be between two hosts.
        """
        self.db.close()
        self.primary.crash()
        self.standby.kill()
        self.standby.start()
        self.standby.control("-w", "promote")
        self.db = self.connect(self.standby)
        self.db.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self.db.execute("SELECT pg_reload_conf()")
        until(lambda: self.db.execute("SHOW synchronous_standby_names").fetchone() == ("",))
        return self.db

    def switch_over(self, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Stop the primary, which sends all to the standby first, and promote that.

        `meanwhile` is called in between.

        The former primary becomes the standby. It is `primary` before and `standby` afterwards.
        Returns when commits were possible again, by the monotonic clock.
        """
        self.db.close()
        former, promoted = self.primary, self.standby
        former.control("-w", "-m", "fast", "stop")
        meanwhile()
        promoted.control("-w", "promote")
        self.primary, self.standby, self.uri = promoted, former, promoted.uri
        self.db = self.connect(promoted)
        at = time.monotonic()
        former.follow(promoted)
        self.db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.db.execute("SELECT pg_reload_conf()")
        return at

    def wait_for_standby(self) -> None:
        """Return once the standby has all."""
        until(lambda: self.db.execute(_SYNCHRONOUS).fetchall())

    def rejoin(self) -> None:
        """After `fail_over` make the former primary the standby of the present one."""
        self.primary, self.standby = self.standby, self.primary
        shutil.rmtree(self.standby.data)
        self.standby.copy(self.primary)
        caught_up = "SELECT FROM pg_stat_replication WHERE state = 'streaming'"
        until(lambda: self.db.execute(caught_up).fetchall())

    def close(self) -> None:
        self.thaw()
        self.db.close()
        for node in (self.primary, self.standby):
            node.crash()


@contextmanager
def replicated(server: str, *, synchronous: bool = True) -> Iterator[Pair]:
    """Make a pair of the release of the server under test."""
    with psycopg.connect(server) as db:
        release = db.info.server_version // 10_000
    folder = memory_folder()
    try:
        with closing(Pair(folder, release, synchronous=synchronous)) as pair:
            yield pair
    finally:
        shutil.rmtree(folder, ignore_errors=True)
