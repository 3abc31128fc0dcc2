"""The daemons notify systemd: ready, reload, watchdog, stop; and take its sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.daemons import ROOT
from tests.support.submit import post
from tests.support.waiting import PATIENCE, SLACK, free_port

WATCHDOG = 2.0  # seconds


class Manager:
    """The socket to which a daemon sends its notes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(PATIENCE)
        self.notes: list[str] = []

    def wait(self, note: str) -> str:
        """Return the next note that begins so; notes of the watchdog come between."""
        while True:
            text = self._socket.recv(4096).decode()
            self.notes.append(text)
            if text.startswith(note):
                return text

    def start(self, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PGMTA_")}
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stderr=subprocess.DEVNULL,
            env=environment | more
            | {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))},
        )  # fmt: skip

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path)
    yield manager
    manager.close()


def written(path: Path, config: dict[str, object]) -> Path:
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smtpd", "queued", "web"])
def test_notes(name: str, manager: Manager, tmp_path: Path, database: str) -> None:
    listen = {"listen": [{"address": "127.0.0.1", "port": free_port()}]}
    config: dict[str, object] = {"environment": {"database": {"uri": database}}}
    if name != "queued":
        config |= listen
    if name == "smtpd":
        config["processes"] = 1
    path = written(tmp_path / f"{name}.yaml", config)
    words = {"smtpd": ["smtpd", "run"], "queued": ["queued", "run"], "web": ["queued", "web"]}
    daemon = manager.start([*words[name], "-c", str(path)])
    try:
        assert "STATUS=" in manager.wait("READY=1")
        if name == "queued":
            manager.wait("STATUS=delivers mail")
        manager.wait("WATCHDOG=1")
        os.kill(daemon.pid, signal.SIGHUP)
        assert int(manager.wait("RELOADING=1").partition("MONOTONIC_USEC=")[2]) > 0
        manager.wait("READY=1")
        path.write_text("listen: 5\nworkers: 5\n")
        os.kill(daemon.pid, signal.SIGHUP)
        manager.wait("RELOADING=1")
        manager.wait("READY=1")
    finally:
        daemon.terminate()
    manager.wait("STOPPING=1")
    assert daemon.wait(PATIENCE + SLACK) == 0


def test_queued_is_ready_while_postgresql_is_away(manager: Manager, tmp_path: Path) -> None:
    uri = f"postgresql://postgres@127.0.0.1:{free_port()}/x"
    path = written(tmp_path / "queued.yaml", {"environment": {"database": {"uri": uri}}})
    daemon = manager.start(["queued", "run", "-c", str(path)])
    assert manager.wait("READY=1") == "READY=1\nSTATUS=waits for PostgreSQL"
    manager.wait("WATCHDOG=1")
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("named", ["smtp", "mx-25"])
def test_sockets_of_systemd(named: str, manager: Manager, tmp_path: Path, database: str) -> None:
    """A process takes over descriptor 3, as systemd passes it, whatever its name is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config: dict[str, object] = {
            "environment": {"database": {"uri": database}}, "processes": 2,
            "listen": [{"address": "127.0.0.1", "port": port}],
        }  # fmt: skip
        path = written(tmp_path / "smtpd.yaml", config)
        script = (
            "import os, sys\nos.dup2(int(sys.argv[1]), 3)\nos.set_inheritable(3, True)\n"
            "os.environ['LISTEN_PID'] = str(os.getpid())\n"
            "os.execv(sys.executable, [sys.executable, '-m', 'smtpd', 'run', '-c', sys.argv[2]])\n"
        )
        daemon = subprocess.Popen(
            [sys.executable, "-c", script, str(listening.fileno()), str(path)],
            cwd=ROOT, pass_fds=[listening.fileno()], stderr=subprocess.DEVNULL,
            env=os.environ | {"NOTIFY_SOCKET": str(manager.path), "LISTEN_FDS": "1",
                              "LISTEN_FDNAMES": named},
        )  # fmt: skip
    try:
        assert manager.wait("READY=1").endswith("takes mail with 2 processes")
        assert post(port, "a@a.example", ["b@b.example"], b"Subject: x\r\n\r\nx\r\n") > 0
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
