"""The embedded server: whatever ends it or its users, the others go on."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import yaml

from pgmta.postgres.embedded.database import QUEUED, SMTPD
from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer
from pgmta.postgres.embedded.programs import tool
from tests.support.daemons import ROOT, Daemon, Smtpd, lives
from tests.support.database import data_folder
from tests.support.nexthop import NextHop
from tests.support.submit import post
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port, until

MAIL = b"Subject: x\r\n\r\nx\r\n"
AGAIN = "embedded PostgreSQL had died and was started again"
FAILED = "embedded PostgreSQL does not start"
QUEUECTL = str(Path(sys.executable).with_name("queuectl"))
BACK = 30.0  # seconds
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may mount")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the data of an embedded server, which is ended at last."""
    folder = data_folder()
    yield folder
    EmbeddedServer(folder).stop("immediate")
    shutil.rmtree(folder)


@pytest.fixture
def system(folder: Path, tmp_path: Path) -> Iterator[System]:
    """An installation whose daemons have no URI; the test itself is no user of the server."""
    system = System(tmp_path, EmbeddedServer(folder).uri(DATABASE))
    try:
        yield system
        system.stop()
    finally:
        system.clean()
    assert system.faults() == []


def here(folder: Path) -> dict[str, Any]:
    """Configuration of a daemon on that server."""
    return {"environment": {"database": {"uri": None}, "directory": str(folder)}}


def queuectl(folder: Path, *words: str) -> str:
    """Run a command on that server, to its good end."""
    config = folder / "queuectl.yaml"
    config.write_text(yaml.safe_dump(here(folder)))
    done = subprocess.run(
        [QUEUECTL, *words, "-c", str(config)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def postmaster(folder: Path) -> int:
    """Its process id."""
    return int((folder / "postgres" / "postmaster.pid").read_text().split()[0])


def kill_postmaster(folder: Path) -> None:
    """Kill it, and wait until a daemon has started another one.

    Until then processes of the killed one may still commit mail.
    """
    number = postmaster(folder)
    os.kill(number, signal.SIGKILL)

    def another() -> bool:
        with suppress(OSError, IndexError, ValueError):
            return postmaster(folder) != number
        return False

    until(another, describe="another postmaster")


def await_starts(daemons: list[Daemon], times: int) -> None:
    """A daemon has started the server, and said so: mail may be faster than the line in the log.

    A server that dies before the line is started again by the same call, which says it once.
    """

    def said() -> int:
        return sum(len(daemon.events(AGAIN)) for daemon in daemons)

    until(lambda: said() >= times, describe=f"{times} starts in the logs")
    assert said() == times


def probe(system: System, smtpd: Smtpd, hop: NextHop, name: str, limit: float = BACK) -> None:
    """A mail gets through within `limit` seconds."""
    end = time.monotonic() + limit

    def taken() -> bool:
        with smtpd.connect() as client:
            return client.send("a@example.org", [f"{name}@hop.example"], MAIL).code == 250

    until(taken, limit, f"250 for {name}")
    until(lambda: f"{name}@hop.example" in hop.deliveries(), end - time.monotonic(), name)


@pytest.mark.slow
def test_daemons_start_it_again_and_a_command_never_stops_it(system: System, folder: Path) -> None:
    queuectl(folder, "migrate")
    server = EmbeddedServer(folder)
    assert not server.running()
    hop = system.hop()
    smtpd = system.smtpd(**here(folder), processes=2)
    for _ in range(2):
        system.queued(hop, **here(folder))
    probe(system, smtpd, hop, "first")
    used = system.ask(
        "SELECT DISTINCT usename FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgmta %%' AND pid <> pg_backend_pid()"
    )
    assert {row["usename"] for row in used} == {SMTPD, QUEUED}
    # the line that README and docs/programs/sql.md give to operators
    for psql in (tool("psql"), *filter(None, [shutil.which("psql")])):
        words = ["-h", f"{folder}/postgres", "-U", "postgres", DATABASE, "-Atc", "TABLE queue"]
        subprocess.run([psql, *words], check=True, timeout=PATIENCE)

    number = postmaster(folder)
    queuectl(folder, "count")
    assert postmaster(folder) == number
    assert server.running()

    kill_postmaster(folder)
    probe(system, smtpd, hop, "killed")
    await_starts(system.daemons, 1)

    # a process of it stays, as one may that waits for a disk
    (child, *_) = psutil.Process(postmaster(folder)).children()
    child.suspend()
    kill_postmaster(folder)
    probe(system, smtpd, hop, "orphan")
    assert not lives(child)
    await_starts(system.daemons, 2)

    # another process of the same user has its number by now, and a full disk has left files empty
    with open(folder / "postgres.starting") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        owner = psutil.Process(postmaster(folder)).username()
        sleeper = subprocess.Popen(
            ["sleep", "600"], cwd="/", user=owner if os.geteuid() == 0 else None
        )
        file = folder / "postgres" / "postmaster.pid"
        text = re.sub(r"^\d+", str(sleeper.pid), file.read_text())
        processes = [psutil.Process(postmaster(folder))]
        processes += processes[0].children(recursive=True)
        os.kill(postmaster(folder), signal.SIGKILL)
        until(lambda: not any(map(lives, processes)))
        file.write_text(text)
        (folder / "postgres" / ".s.PGSQL.5432.lock").write_text("")
    probe(system, smtpd, hop, "reused")
    sleeper.kill()
    sleeper.wait()

    await_starts(system.daemons, 3)
    for daemon in system.daemons:
        daemon.kill()
    assert server.running()  # no process was left to stop it
    until(lambda: "QUEUED" not in queuectl(folder, "count") and not server.running())


@pytest.mark.slow
@as_root
def test_it_comes_back_after_a_full_disk(system: System, folder: Path) -> None:
    system.expected = {FAILED, "message refused by the database"}
    mounted = ["mount", "-t", "tmpfs", "-o", "size=120m,mode=0711", "tmpfs", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this machine permits no mount")
    try:
        queuectl(folder, "migrate")
        hop = system.hop()
        smtpd = system.smtpd(**here(folder))
        system.queued(hop, **here(folder))
        probe(system, smtpd, hop, "before")
        turns = iter(range(1000))

        def failed() -> bool:
            fill(folder / "filler")  # again: what a crash sets free, others take
            write_log(system)
            if next(turns) == 10 and EmbeddedServer(folder).running():
                os.kill(postmaster(folder), signal.SIGKILL)
            return any(daemon.events(FAILED) for daemon in system.daemons)

        # PostgreSQL gives up when there is no room for its log of changes, and again at each start
        until(failed)
        with smtpd.connect() as client:
            assert client.send("a@example.org", ["full@hop.example"], MAIL).code == 451
        (folder / "filler").unlink()
        probe(system, smtpd, hop, "after")
        system.stop()
    finally:
        system.clean()
        EmbeddedServer(folder).stop("immediate")
        subprocess.run(["umount", "-l", str(folder)], check=True)


def write_log(system: System) -> None:
    """Have the server begin a new file of its WAL, if it can."""
    with suppress(psycopg.Error):
        system.ask("SELECT pg_logical_emit_message(true, 'x', 'x')")
        system.ask("SELECT pg_switch_wal()")


def fill(path: Path) -> None:
    """Leave no room on the disk."""
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass


class Up:
    """`queuectl up`, and what it has started."""

    def __init__(self, folder: Path, smtpd: Path, queued: Path, port: int, sink: int) -> None:
        self.port = port
        ports = ["--port", str(port), "--sink-port", str(sink), "--page-port", str(free_port())]
        self.command = [QUEUECTL, "up", "--smtpd", str(smtpd), "--queued", str(queued), *ports]
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.said: list[str] = []

    def ready(self) -> list[psutil.Process]:
        """Wait until it says how to send a mail; return its processes, the database's not."""
        assert self.process.stdout
        while line := self.process.stdout.readline():
            self.said.append(line)
            if "Ctrl-C" in line:
                found = psutil.Process(self.process.pid).children(recursive=True)
                return [child for child in found if "python" in child.name()]
        raise AssertionError(f"up ended: {self.said}")

    def refused(self, *options: str) -> str:
        """The error of another one, which says nothing else."""
        done = subprocess.run(
            [*self.command, *options], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr


@pytest.mark.slow
def test_up_is_killed_and_the_next_one_takes_over(folder: Path) -> None:
    port, sink = free_port(), free_port()
    smtpd, queued = folder / "smtpd.yaml", folder / "queued.yaml"
    base = here(folder / "var")
    listen = [{"address": "127.0.0.1", "port": port}]
    smtpd.write_text(yaml.safe_dump({**base, "listen": listen, "processes": 2}))
    retry = {"intervals": ["1s"]}  # the sink may be gone before it has the first mail
    route = {"*": f"127.0.0.1:{sink}"}
    queued.write_text(yaml.safe_dump({**base, "routes": route, "retry": retry}))
    ups = [Up(folder, smtpd, queued, port, sink)]
    try:
        first = ups[0].ready()
        assert len(first) == 5
        running = f"pid {ups[0].process.pid}, smtpd on port {port}, sink on port {sink}"
        error = f"error: `queuectl up` already runs on {folder}/var: {running}\n"
        assert ups[0].refused() == error
        (folder / "other.yaml").write_text("environment: {directory: other}\n")
        error = ups[0].refused("--queued", str(folder / "other.yaml"))
        assert error.startswith(f"error: can't use port {port}: Address already in use: pid ")
        assert not (folder / "other" / "postgres").exists()
        assert EmbeddedServer(folder / "var").running()
        post(port, "a@example.org", ["b@hop.example"], MAIL)
        ups[0].process.kill()
        ups.append(Up(folder, smtpd, queued, port, sink))
        second = ups[-1].ready()
        assert not any(map(lives, first))
        post(port, "a@example.org", ["c@hop.example"], MAIL)
        assert ups[-1].process.stdout
        mails = (line for line in ups[-1].process.stdout if line.startswith("mail "))
        assert "<a@example.org> to <" in next(mails)
        kept = folder / "var" / "sink"
        until(lambda: len(list((kept / "new").iterdir())) == 2)
        assert {path.stat().st_mode & 0o777 for path in (kept / "new").iterdir()} == {0o600}
        assert {path.stat().st_mode & 0o777 for path in (kept, *kept.iterdir())} == {0o700}
        ups[-1].process.terminate()
        assert ups[-1].process.wait(PATIENCE) == 0
        assert not any(map(lives, second))
        assert not EmbeddedServer(folder / "var").running()
    finally:
        for up in ups:
            up.process.kill()
            up.process.wait()
            assert up.process.stdout
            up.process.stdout.close()
        EmbeddedServer(folder / "var").stop("immediate")
