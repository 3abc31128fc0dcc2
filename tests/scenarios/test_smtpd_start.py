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

import pytest

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


def test_a_file_that_blocks_its_reader_holds_up_no_signal(tmp_path: Path) -> None:
    file = tmp_path / "smtpd.yaml"
    os.mkfifo(file)
    command = [sys.executable, "-P", "-m", "smtpd", "run", "-c", str(file)]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    until(children.read_text)
    run.terminate()
    assert run.wait(PATIENCE) == 0


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
