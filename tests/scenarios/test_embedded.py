"""The embedded server: whatever ends it or its owner, it comes back, and the daemons go on."""

from __future__ import annotations

import os
import re
import shlex
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

from pgmta.postgres.embedded.embedded_server import DATABASE, EmbeddedServer
from pgmta.postgres.embedded.programs import tool
from tests.support.daemons import ROOT, Smtpd, lives
from tests.support.database import data_folder
from tests.support.nexthop import NextHop
from tests.support.submit import post
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port, until

MAIL = b"Subject: x\r\n\r\nx\r\n"
AGAIN = "warning: the embedded PostgreSQL had died and was started again"
FAILED = "error: the embedded PostgreSQL does not start: "
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
    """An installation whose daemons have no URI."""
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


class Owner:
    """`queuectl database run`, with a log beside the folder."""

    def __init__(self, folder: Path) -> None:
        self.log = Path(f"{folder}.log")  # not below it: the test fills that disk
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [QUEUECTL, "database", "run", "--directory", str(folder)],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout
        with self.process.stdout as stdout:
            self.said = stdout.readline()

    def end(self, number: int) -> int:
        """Send it a signal, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def told(self, text: str) -> int:
        """How often its log has the text."""
        return self.log.read_text().count(text)


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    """The owners of the test, which are ended at last."""
    owners: list[Owner] = []
    yield owners
    for owner in owners:
        owner.process.kill()
        owner.process.wait()
        owner.log.unlink(missing_ok=True)


def postmaster(folder: Path) -> int:
    """Its process id."""
    return int((folder / "postgres" / "postmaster.pid").read_text().split()[0])


def kill_postmaster(folder: Path) -> None:
    """Kill it, and wait until the owner has started another one.

    Until then processes of the killed one may still commit mail.
    """
    number = postmaster(folder)
    os.kill(number, signal.SIGKILL)

    def another() -> bool:
        with suppress(OSError, IndexError, ValueError):
            return postmaster(folder) != number
        return False

    until(another, describe="another postmaster")


def probe(system: System, smtpd: Smtpd, hop: NextHop, name: str, limit: float = BACK) -> None:
    """A mail gets through within `limit` seconds."""
    end = time.monotonic() + limit

    def taken() -> bool:
        with smtpd.connect() as client:
            return client.send("a@example.org", [f"{name}@hop.example"], MAIL).code == 250

    until(taken, limit, f"250 for {name}")
    until(lambda: f"{name}@hop.example" in hop.deliveries(), end - time.monotonic(), name)


@pytest.mark.slow
def test_its_owner_starts_it_again_and_the_next_owner_takes_over(
    system: System, folder: Path, owners: list[Owner]
) -> None:
    # of the daemon that is there before the first start
    system.expected = {
        "PostgreSQL refuses the login", "the schema is of another version, no mail is taken"
    }  # fmt: skip
    hop = system.hop()
    start = f"`queuectl database run --directory {folder}`"
    waits = system.queued(hop, ready=False, **here(folder))
    assert start in waits.wait_log("no database yet")["reason"]
    assert not (folder / "postgres").exists()

    server = EmbeddedServer(folder)
    owners.append(owner := Owner(folder))
    queuectl(folder, "database", "migrate")
    smtpd = system.smtpd(**here(folder), processes=2)
    system.queued(hop, **here(folder))
    probe(system, smtpd, hop, "first")
    used = system.ask(
        "SELECT DISTINCT usename FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgmta %%' AND pid <> pg_backend_pid()"
    )
    assert {row["usename"] for row in used} == {"pgmta_smtpd", "pgmta_queued"}
    # the line that it says itself, and that README and docs/programs/sql.md give to operators
    assert owner.said.startswith(f"PostgreSQL in {folder}/postgres: ")
    words = shlex.split(owner.said.partition(": ")[2])
    for psql in (words[0], tool("psql")):
        command = [psql, *words[1:], "-Atc", "TABLE queue"]
        subprocess.run(command, check=True, timeout=PATIENCE)

    kill_postmaster(folder)
    probe(system, smtpd, hop, "killed")
    until(lambda: owner.told(AGAIN) == 1)

    # a process of it stays, as one may that waits for a disk
    (child, *_) = psutil.Process(postmaster(folder)).children()
    child.suspend()
    kill_postmaster(folder)
    probe(system, smtpd, hop, "orphan")
    assert not lives(child)
    until(lambda: owner.told(AGAIN) == 2)

    # another process of the same user has its number by now, and a full disk has left files empty
    owner.process.send_signal(signal.SIGSTOP)
    user = psutil.Process(postmaster(folder)).username() if os.geteuid() == 0 else None
    sleeper = subprocess.Popen(["sleep", "600"], cwd="/", user=user)
    file = folder / "postgres" / "postmaster.pid"
    text = re.sub(r"^\d+", str(sleeper.pid), file.read_text())
    processes = [psutil.Process(postmaster(folder))]
    processes += processes[0].children(recursive=True)
    os.kill(postmaster(folder), signal.SIGKILL)
    until(lambda: not any(map(lives, processes)))
    file.write_text(text)
    (folder / "postgres" / ".s.PGSQL.5432.lock").write_text("")
    owner.process.send_signal(signal.SIGCONT)
    probe(system, smtpd, hop, "reused")
    sleeper.kill()
    sleeper.wait()
    until(lambda: owner.told(AGAIN) == 3)

    number = postmaster(folder)
    owner.end(signal.SIGKILL)
    probe(system, smtpd, hop, "ownerless")
    owners.append(owner := Owner(folder))
    assert postmaster(folder) == number
    owners.append(second := Owner(folder))
    assert (second.process.wait(PATIENCE), second.said) == (1, "")
    there = f"`queuectl database run` already runs on {folder}: pid {owner.process.pid} on "
    assert second.told(there) == 1

    assert owner.end(signal.SIGTERM) == 0
    assert not server.running()
    owners.append(owner := Owner(folder))
    probe(system, smtpd, hop, "again")
    system.stop()
    assert owner.end(signal.SIGINT) == 0
    assert not server.running()


@pytest.mark.slow
@as_root
def test_it_comes_back_after_a_full_disk(system: System, folder: Path, owners: list[Owner]) -> None:
    system.expected = {"message refused by the database"}
    mounted = ["mount", "-t", "tmpfs", "-o", "size=120m,mode=0711", "tmpfs", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this machine permits no mount")
    try:
        owners.append(owner := Owner(folder))
        queuectl(folder, "database", "migrate")
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
            return owner.told(FAILED) > 0

        # PostgreSQL gives up when there is no room for its log of changes, and again at each start
        until(failed)
        with smtpd.connect() as client:
            assert client.send("a@example.org", ["full@hop.example"], MAIL).code == 451
        (folder / "filler").unlink()
        probe(system, smtpd, hop, "after")
        system.stop()
        assert owner.end(signal.SIGTERM) == 0
    finally:
        system.clean()
        owners[0].process.kill()
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
        """Wait until it says how to send a mail; return its processes, PostgreSQL's not."""
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
        assert len(first) == 6
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
