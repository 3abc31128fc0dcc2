"""Three hosts with etcd, Patroni and PostgreSQL, from the files of packaging/cluster."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import yaml
from psycopg.conninfo import make_conninfo

from bench.helper import ROOT
from bench.loss.hosts import Hosts, inner
from pgmta.postgres.embedded.programs import Programs, tool

DATABASES = ("db1", "db2", "db3")
PACKAGING = ROOT / "packaging" / "cluster"
_LOOK_S, _WHOLE_LOOK_S = 0.1, 0.5  # the second takes some CPU
_PRIMARY_TIMEOUT_S = _COMMAND_TIMEOUT_S = 180.0  # on a busy machine
_WAL_MB, _WAL_PART_MB, _WAL_SEGMENT_MB = 768, 64, 4
_PARAMETERS = {  # smaller, and files outlive a killed process without a sync
    "shared_buffers": "64MB",
    "fsync": "off",
    "max_wal_size": f"{_WAL_PART_MB}MB",
    "min_wal_size": "8MB",
    "max_slot_wal_keep_size": f"{_WAL_MB - 4 * _WAL_PART_MB}MB",
    "wal_recycle": "off",  # a full disk is met by the next segment
}
_STREAMING = """
SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication
        WHERE state = 'streaming' AND sync_state = 'quorum'),
    current_setting('synchronous_standby_names')
"""
_EMIT = "SELECT pg_logical_emit_message(true, 'bench', '')"


class ClusterError(RuntimeError):
    """The cluster did not do what it should within its time."""


def packages() -> Path:
    """Return the folder of what scripts/test-packages has unpacked."""
    return Path(os.environ.get("PGMTA_TEST_PACKAGES") or ROOT / "var" / "packages").resolve()


def lacking() -> list[str]:
    """Return what this machine lacks for a cluster."""
    found = ["root"] if os.geteuid() else []
    found += [name for name in ("ip", "setpriv", "mount") if not shutil.which(name)]
    if not found and subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        found.append("the right to make network namespaces")
    places = {"patroni": "patroni/bin/patroni", "etcd": "etcd-server/usr/bin/etcd"}
    return found + [name for name, path in places.items() if not (packages() / path).exists()]


def wait(what: str, found: Callable[[], Any], seconds: float, look: float = _LOOK_S) -> Any:
    """Return what `found` returns, once it is true. Raises ClusterError after the time."""
    end = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {seconds:g} s")
        time.sleep(look)
    return value


class Probe(threading.Thread):
    """Writes to one server all the time, past Patroni and pgmta, and notes when it could."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._uri = make_conninfo(
            host=str(folder), user="postgres", dbname="postgres", application_name="bench probe"
        )
        self.wrote = 0.0
        self._first_after: tuple[float, float] = (0.0, 0.0)
        self._ended = threading.Event()

    def run(self) -> None:
        """Write until the end."""
        while not self._ended.wait(0.05):
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self._uri, autocommit=True, connect_timeout=3) as db,
            ):
                self._write(db)

    def _write(self, db: psycopg.Connection[Any]) -> None:
        warnings: list[str] = []  # a cancelled wait for the standby is one
        db.add_notice_handler(lambda notice: warnings.append(notice.severity_nonlocalized or ""))
        while not self._ended.wait(0.05):
            if db.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                began = time.monotonic()
                db.execute(_EMIT)
                if not warnings:
                    self._note(began)
                warnings.clear()

    def _note(self, began: float) -> None:
        self.wrote = time.monotonic()
        since, first = self._first_after
        if not first and began > since:
            self._first_after = since, self.wrote

    def await_write(self) -> None:
        """Forget when it wrote; `first` is the next write that begins from now on."""
        self._first_after = time.monotonic(), 0.0

    @property
    def first(self) -> float:
        """When the first write since then had succeeded, by the monotonic clock; 0: none has."""
        return self._first_after[1]

    def close(self) -> None:
        """End."""
        self._ended.set()


class Cluster:
    """etcd and Patroni on the hosts db1 to db3, with their data in the folder of the hosts."""

    def __init__(self, hosts: Hosts, programs: Path | None = None) -> None:
        self._hosts, self._folder = hosts, hosts.folder
        self._bin = programs or Path(tool("postgres")).parent
        owner = Programs().owner()
        self._user = ["setpriv", f"--reuid={owner.pw_name}", f"--regid={owner.pw_gid}",
                      "--clear-groups"]  # fmt: skip
        self.env = dict(
            line.split("=", 1)
            for line in (PACKAGING / "patroni.env").read_text().splitlines()
            if line.startswith("PATRONI_")
        )
        self.probes: dict[str, Probe] = {}
        for name in DATABASES:
            place = self._folder / name
            (place / "disk").mkdir(parents=True)
            size = f"size={_WAL_MB}m,mode=0755"
            mount = ["mount", "-t", "tmpfs", "-o", size, "pgmta-losses", str(place / "disk")]
            subprocess.run(mount, check=True, timeout=20)
            for each in (place, place / "disk"):
                shutil.chown(each, owner.pw_uid, owner.pw_gid)
            self._configure(name)

    def _configure(self, name: str) -> None:
        place = self._folder / name
        config = yaml.safe_load((PACKAGING / "patroni.yml").read_text())
        shared = config["bootstrap"]["dcs"]["postgresql"]
        shared["parameters"] |= _PARAMETERS
        shared["pg_hba"].insert(0, "local all all trust")
        wal = str(place / "disk" / "wal")
        config["bootstrap"]["initdb"] += [{"waldir": wal}, {"wal-segsize": str(_WAL_SEGMENT_MB)}]
        config["postgresql"] |= {
            "data_dir": str(place / "data"),
            "bin_dir": str(self._bin),
            "pgpass": str(place / "pgpass"),
            "basebackup": [{"waldir": wal}, {"checkpoint": "fast"}],
        }
        config["postgresql"]["parameters"]["unix_socket_directories"] = str(place)
        config["watchdog"]["mode"] = "off"
        (place / "patroni.yml").write_text(yaml.safe_dump(config, sort_keys=False))

    def _own(self, text: str, name: str) -> str:
        """Return a setting of db1 as this host has it."""
        return text.replace("db1", name).replace(inner("db1"), inner(name))

    def _patroni_env(self, name: str) -> dict[str, str]:
        found = {key: self._own(value, name) for key, value in self.env.items()}
        return {**os.environ, "HOME": "/", "LC_ALL": "C.UTF-8", **found}

    def _run(
        self, name: str, what: str, command: Sequence[str | Path], env: dict[str, str]
    ) -> None:
        with (self._folder / name / f"{what}.log").open("ab") as log:
            subprocess.Popen(
                [*self._hosts.words(name), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=env, cwd="/", start_new_session=True,
            )  # fmt: skip

    def start_host(self, name: str, wiped: bool = False) -> None:
        """Start what a host runs; `wiped`: PostgreSQL's files are gone."""
        place = self._folder / name
        if wiped:
            shutil.rmtree(place / "data", ignore_errors=True)
            shutil.rmtree(place / "disk" / "wal", ignore_errors=True)
        env = {**os.environ, "ETCD_DATA_DIR": str(place / "etcd")}
        for line in (PACKAGING / "etcd.env").read_text().splitlines():
            if line.startswith("ETCD_"):
                key, value = line.split("=", 1)
                env[key] = value if key == "ETCD_INITIAL_CLUSTER" else self._own(value, name)
        self._run(name, "etcd", [packages() / "etcd-server/usr/bin/etcd"], env)
        command: list[str | Path] = [
            *self._user,
            packages() / "patroni/bin/patroni",
            place / "patroni.yml",
        ]
        self._run(name, "patroni", command, self._patroni_env(name))

    def start(self) -> None:
        """Start all hosts, and wait for the first primary. Raises ClusterError."""
        for name in DATABASES:
            self.start_host(name)
            self.probes[name] = Probe(self._folder / name)
        self.wait_primary()
        for probe in self.probes.values():
            probe.start()

    def close(self) -> None:
        """End the probes."""
        for probe in self.probes.values():
            probe.close()

    def connect(self, name: str, dbname: str = "postgres") -> psycopg.Connection[Any]:
        """Return a session as superuser on one server, whatever the network does."""
        host = str(self._folder / name)
        return psycopg.connect(
            host=host, user="postgres", dbname=dbname, autocommit=True, connect_timeout=3
        )

    def states(self) -> dict[str, tuple[bool, int, str] | None]:
        """Return of each server: is it a standby, how many stream from it, whose names count."""
        found: dict[str, tuple[bool, int, str] | None] = {}
        for name in DATABASES:
            found[name] = None
            with contextlib.suppress(psycopg.Error), self.connect(name) as db:
                found[name] = db.execute(_STREAMING).fetchone()
        return found

    def primary(self) -> str | None:
        """Return the only server that is no standby."""
        found = [name for name, state in self.states().items() if state and not state[0]]
        return found[0] if len(found) == 1 else None

    def wait_primary(self) -> str:
        """Return the primary, once there is one. Raises ClusterError."""
        return str(wait("a primary", self.primary, _PRIMARY_TIMEOUT_S))

    def whole(self) -> str | None:
        """Return the primary, if both others count for its commits and may be promoted."""
        states = self.states()
        primary = [name for name, state in states.items() if state and state[:2] == (False, 2)]
        if len(primary) == 1 and all(states.values()):
            others = [name for name in DATABASES if name != primary[0]]
            if all(self._hosts.get(name, 8008, "/quorum") == 200 for name in others):
                return primary[0]
        return None

    def wait_whole(self, seconds: float) -> str:
        """Return the primary, once all three servers are there. Raises ClusterError."""
        try:
            return str(wait("three servers", self.whole, seconds, _WHOLE_LOOK_S))
        except ClusterError as error:
            raise ClusterError(f"{error}: {self.states()}") from None

    def kill_postmaster(self, name: str) -> None:
        """Kill the postmaster of a server."""
        pid = int((self._folder / name / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def fill_disk(self, name: str) -> None:
        """Leave no room where a server has its WAL."""
        ballast = self._folder / name / "disk" / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", 0) as file:
            while file.write(bytes(1 << 20)):
                pass

    def free_disks(self) -> None:
        """Give back the room."""
        for name in DATABASES:
            (self._folder / name / "disk" / "ballast").unlink(missing_ok=True)

    def switch_over(self, primary: str) -> None:
        """Switch over to the quicker standby, as operators do. Raises ClusterError."""
        words = ["switchover", "pgmta", "--force", "--primary", primary]
        config = str(self._folder / primary / "patroni.yml")
        command = [str(packages() / "patroni/bin/patronictl"), "-c", config, *words]
        done = subprocess.run(
            [*self._hosts.words(primary), *command], env=self._patroni_env(primary),
            capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode or not re.search("Successfully switched over", done.stdout):
            raise ClusterError(f"patronictl: {(done.stdout + done.stderr).strip()[-300:]}")
