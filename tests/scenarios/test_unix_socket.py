"""Listeners on Unix sockets."""

from __future__ import annotations

import smtplib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import Smtpd
from tests.support.system import System


def send(path: Path, recipient: str) -> None:
    """Send a mail by LMTP to one recipient."""
    with smtplib.LMTP(str(path)) as client:
        client.sendmail("a@x.example", [recipient], b"Subject: x\r\n\r\nx\r\n")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unix") / "lmtp"


def listening(system: System, place: Path) -> Smtpd:
    smtpd = system.smtpd(processes=2)
    smtpd.stop()
    listen = [*smtpd.config["listen"], {"socket": str(place), "protocol": "lmtp"}]
    smtpd.write({**smtpd.config, "listen": listen})
    return smtpd


@pytest.mark.slow
def test_lmtp_on_a_unix_socket_of_a_dead_server(system: System, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))  # a server that was killed leaves its file
    smtpd = listening(system, place)
    smtpd.start()
    smtpd.wait_log("serving", 4)
    for number in range(8):
        send(place, f"{number}@y.example")
    assert [row["recipient"] for row in system.queue()] == [f"{n}@y.example" for n in range(8)]
    trace = system.ask("SELECT trace FROM messages LIMIT 1")[0]["trace"]
    assert "([127.0.0.1])" in trace


def check(smtpd: Smtpd) -> str:
    """The error of an smtpd that can't start."""
    command = [sys.executable, "-m", "smtpd", "run", "-c", str(smtpd.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    return done.stderr


@pytest.mark.slow
def test_a_living_server_and_other_files_stay(system: System, place: Path) -> None:
    smtpd = listening(system, place)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place))
        other.listen()
        assert f"can't listen on {place}: another server listens there" in check(smtpd)
    place.unlink()
    place.write_text("precious")
    assert "the file is no socket" in check(smtpd)
    assert place.read_text() == "precious"
