"""How smtpd starts: sockets of systemd, root's ports and keys for another user, TLS at SIGHUP."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import smtplib
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.certificates import Certificate
from tests.support.system import System
from tests.support.waiting import PATIENCE, until

MAIL = b"Subject: x\r\n\r\nx\r\n"
USER = "pgserver"  # the owner of the tests' PostgreSQL, if root runs them


def start(config: Path, passed: socket.socket, folder: Path) -> subprocess.Popen[str]:
    """Start smtpd in a folder as systemd does for a socket unit (sd_listen_fds(3))."""
    command = shlex.join([sys.executable, "-P", "-m", "smtpd", "run", "-c", str(config)])
    return subprocess.Popen(
        ["sh", "-c", f"LISTEN_PID=$$ LISTEN_FDS=1 exec {command}"],
        cwd=folder,
        preexec_fn=lambda: os.dup2(passed.fileno(), 3),
        pass_fds=[3],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_sockets_of_systemd(system: System, tmp_path: Path) -> None:
    """They outlive smtpd: the next one serves a client that connects meanwhile.

    Its processes import no module of the folder that it was started in, which may be of any user.
    """
    (tmp_path / "smtpd.py").write_text("raise SystemExit(9)\n")
    smtpd = system.smtpd(processes=2)
    smtpd.stop()
    with socket.create_server(("127.0.0.1", smtpd.port)) as passed:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", smtpd.port), PATIENCE) as client:
                run = start(smtpd.path, passed, tmp_path)
                try:
                    assert client.recv(1000)[:4] == b"220 "
                finally:
                    run.terminate()
                    _, log = run.communicate(timeout=PATIENCE)
                assert run.returncode == 0, log
        with socket.create_server(("127.0.0.1", 0)) as other:
            run = start(smtpd.path, other, tmp_path)
            _, log = run.communicate(timeout=PATIENCE)
        assert run.returncode == 1
        assert "which no entry of listen has" in log


@pytest.mark.slow
def test_without_standard_output_and_error(system: System) -> None:
    smtpd = system.smtpd()
    smtpd.stop()
    command = shlex.join([sys.executable, "-P", "-m", "smtpd", "run", "-c", str(smtpd.path)])
    run = subprocess.Popen(["sh", "-c", f"exec {command} 0<&- 1>&- 2>&-"])

    def greeting() -> bytes:
        with suppress(OSError), socket.create_connection(("127.0.0.1", smtpd.port)) as client:
            return client.recv(1000)
        return b""

    try:
        assert until(greeting)[:4] == b"220 "
    finally:
        run.terminate()
    assert run.wait(PATIENCE) == 0


def blocking_writer(path: Path) -> int:
    """Wait until a process reads a FIFO; it blocks until the returned descriptor is closed."""

    def opened() -> int:
        with suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        return 0

    return until(opened, describe=f"a reader of {path}")


@pytest.mark.parametrize("name", ["smtpd.yaml", "mx.pem", "users.txt"])
def test_a_file_that_blocks_its_reader_holds_up_no_signal(tmp_path: Path, name: str) -> None:
    file = tmp_path / "smtpd.yaml"
    users = {"domains": ["a.example"], "file": "users.txt"}
    named: dict[str, dict[str, Any]] = {
        "smtpd.yaml": {},
        "mx.pem": {"certificates": ["mx.pem"]},
        "users.txt": {"relay": {"domains": ["a.example"], "recipients": [users]}},
    }
    file.write_text(yaml.safe_dump({"environment": {"directory": str(tmp_path)}} | named[name]))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    command = [sys.executable, "-P", "-m", "smtpd", "run", "-c", str(file)]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    blocked = blocking_writer(tmp_path / name)
    run.terminate()
    assert run.wait(PATIENCE) == 0
    os.close(blocked)


def test_a_process_that_a_hook_starts_holds_up_no_signal(tmp_path: Path) -> None:
    file, begun = tmp_path / "smtpd.yaml", tmp_path / "begun"
    os.mkfifo(begun)
    (tmp_path / "starter.py").write_text(
        f"import subprocess\nsubprocess.Popen(['sleep', '600'])\nopen({str(begun)!r}).read()\n"
    )
    settings = {
        "environment": {"directory": str(tmp_path)},
        "hooks": [{"handler": "starter:Hook"}],
    }
    file.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-P", "-m", "smtpd", "run", "-c", str(file)]
    run = psutil.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    blocked = blocking_writer(begun)
    (sleeper,) = [each for each in run.children(recursive=True) if each.name() == "sleep"]
    try:
        run.terminate()
        assert run.wait(PATIENCE) == 0
    finally:
        sleeper.kill()
        os.close(blocked)


def readable() -> bool:
    """Whether another user can run the Python of these tests."""
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", "import pkgutil"]
    try:
        return subprocess.run(command, user=USER, capture_output=True).returncode == 0
    except PermissionError:
        return False


def test_root_binds_and_another_user_serves(system: System, tmp_path: Path) -> None:
    if not readable():
        pytest.skip("only root can become another user, and it needs a Python for all users")
    root = Certificate.root()
    old = root.issue("mx.example")
    certificate, key = old.files(tmp_path)
    key.chmod(0o600)
    entry = {"certificate": str(certificate), "key": str(key)}
    smtpd = system.smtpd(user=USER, certificates=[entry])
    assert {child.uids().real for child in smtpd.children()} == {pwd.getpwnam(USER).pw_uid}
    assert {child.uids().saved for child in smtpd.children()} == {pwd.getpwnam(USER).pw_uid}
    warned = [event["reason"] for event in smtpd.events("configuration")]
    assert any(f"{key}: the user of the processes can't read it" in text for text in warned)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=root.der)

    def shown() -> bytes:
        with smtplib.SMTP("127.0.0.1", smtpd.port, timeout=PATIENCE) as client:
            client._host = "mx.example"  # type: ignore[attr-defined]
            client.starttls(context=context)
            client.sendmail("a@example.org", ["x@hop.example"], MAIL)
            assert isinstance(client.sock, ssl.SSLSocket)
            return client.sock.getpeercert(binary_form=True) or b""

    assert shown() == old.der
    assert len(system.queue()) >= 1
    new = root.issue("mx.example")
    for source, path in zip(new.files(tmp_path), (certificate, key), strict=True):
        os.replace(source, path)
    smtpd.signal(signal.SIGHUP)  # root reads the new key
    successor = smtpd.wait_log("serving", 2)["pid"]
    until(lambda: [child.pid for child in smtpd.children()] == [successor])
    assert shown() == new.der
