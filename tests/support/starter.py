"""Starts `queued` as forks of a process that has imported it, for a seventh of the CPU time.

Once per pytest process. A fork differs from a new process in what `/proc` shows of its command and
its environment, and in what the variables of Python would change.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

_MAX_REQUEST_OCTETS = 1 << 17


class Forked:
    """A process that is no child of this one, with what tests need of `subprocess.Popen`."""

    def __init__(self, stderr: int, status: int) -> None:
        """Read from `status` the process ID, and the exit status when it has ended."""
        self.stderr = open(stderr, "rb")  # noqa: SIM115
        self._status = open(status)  # noqa: SIM115
        self._lock = threading.Lock()
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises TimeoutExpired."""
        if (status := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired("queued", timeout or 0)
        return status

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()  # a test may have more descriptors than select() takes
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                return None
            with self._lock:
                if self.returncode is None:
                    with self._status:
                        self.returncode = int(self._status.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fork(arguments: list[str], environment: Mapping[str, str]) -> Forked:
    """Run `queued` with these arguments in a session of its own; its log goes to `stderr`."""
    read_log, log = os.pipe()
    read_status, status = os.pipe()
    request = json.dumps([arguments, dict(environment)]).encode()
    socket.send_fds(_starter(), [request], [log, status])
    os.close(log)
    os.close(status)
    return Forked(read_log, read_status)


@cache
def _starter() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.support.starter", str(theirs.fileno())]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()], start_new_session=True,
    )  # fmt: skip
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _serve(channel: socket.socket) -> list[str]:
    """Start processes and report their ends; return in each of them, with its arguments.

    At the end of pytest, also by SIGKILL, those that are left get SIGKILL.
    """
    running: dict[int, tuple[int, int]] = {}  # pidfd: process ID, and where its end is reported
    while True:
        ready, _, _ = select.select([channel.fileno(), *running], [], [])
        for pidfd in running.keys() & ready:
            pid, status = running.pop(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with suppress(BrokenPipeError):  # a killed pytest reads it no more
                os.write(status, b"%d\n" % code)
            os.close(status)
            os.close(pidfd)
        if channel.fileno() in ready:
            request, (*files,), _, _ = socket.recv_fds(channel, _MAX_REQUEST_OCTETS, 2)
            if not request:
                for pid, _ in running.values():
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                sys.exit()
            log, status = files
            if not (pid := os.fork()):
                os.setsid()
                os.dup2(log, sys.stderr.fileno())
                os.write(status, b"%d\n" % os.getpid())
                channel.detach()
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                arguments, environment = json.loads(request)
                os.environ.clear()
                os.environ.update(environment)
                return list(arguments)
            os.close(log)
            running[os.pidfd_open(pid)] = pid, status


if __name__ == "__main__":
    import queued.daemon.queued
    import queued.web.web_daemon  # noqa: F401
    from pgmta.features import import_paths, load

    for _, _, path in import_paths("routes"):
        load(path)
    gc.collect()
    gc.freeze()
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("queued", run_name="__main__", alter_sys=True)
