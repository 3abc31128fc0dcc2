"""Binds the listeners, runs the processes that serve them, and restarts those that die."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

from queued.config.loader import load
from queued.database import INHERITED
from queued.errors import ConfigError, PosternError
from queued.logs import get
from queued.service import Signals, first
from smtpd.config import Listener, SmtpdConfig

_BACKOFF = (0.1, 5.0)  # seconds before a restart: at first, at most
_STABLE = 10.0  # seconds after which a process counts as healthy
_GRACE = 40.0  # seconds for a process to stop

log = get("master")


def bind(listener: Listener, count: int) -> list[socket.socket]:
    """Return one listening socket for each process.

    Each has its own accept queue, shared out by the kernel (SO_REUSEPORT); the master keeps them
    open, so that connections survive the restart of a process. Raises PosternError.
    """
    family = socket.AF_INET6 if ":" in listener.address else socket.AF_INET
    at = (listener.address, listener.port)
    sockets: list[socket.socket] = []
    try:
        with socket.socket(family) as probe:
            # with SO_REUSEPORT alone, a second smtpd would quietly take half of the mail
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(at)
        for _ in range(count):
            sock = socket.socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(at)
            sock.listen(listener.backlog)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise PosternError(
            f"can't listen on {listener.address} port {listener.port}: {error.strerror}"
        ) from None
    return sockets


class Master:
    """The parent of all serving processes; it takes no mail itself."""

    def __init__(self, path: Path, config: SmtpdConfig, uri: str) -> None:
        self._path = path
        self._config = config
        self._uri = uri
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        per_listener = [bind(listener, config.processes) for listener in config.listen]
        self._sockets = [[sockets[n] for sockets in per_listener] for n in range(config.processes)]

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP restarts the processes with the new file."""
        signals = Signals()
        keepers = [asyncio.create_task(self._keep(n)) for n in range(self._config.processes)]
        for listener in self._config.listen:
            log.info("listening", address=listener.address, port=listener.port,
                     processes=self._config.processes)  # fmt: skip
        while not signals.stop.is_set():
            await first(signals.stop, signals.reload)
            if signals.reload.is_set():
                signals.reload.clear()
                self._reload()
        self._stopping.set()
        self._signal(signal.SIGTERM)
        _, slow = await asyncio.wait(keepers, timeout=_GRACE)
        if slow:
            self._signal(signal.SIGKILL)
            await asyncio.wait(slow)
        log.info("stopped")

    def _reload(self) -> None:
        try:
            config = load(self._path, SmtpdConfig)
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return
        if (config.listen, config.processes) != (self._config.listen, self._config.processes):
            log.error("configuration kept as it was: listen and processes need a restart")
            return
        log.info("configuration read again")
        self._signal(signal.SIGTERM)  # each keeper starts its process anew

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Run one process, again and again."""
        backoff = _BACKOFF[0]
        descriptors = [sock.fileno() for sock in self._sockets[number]]
        while not self._stopping.is_set():
            started = time.monotonic()
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "smtpd", "serve", "-c", str(self._path),
                "--descriptors", ",".join(map(str, descriptors)),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=descriptors,
                env={**os.environ, INHERITED: self._uri},
            )  # fmt: skip
            self._children[number] = child
            if self._stopping.is_set():
                child.terminate()
            status = await child.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > _STABLE:
                backoff = _BACKOFF[0]
            if status:
                log.error("process died, restarting", pid=child.pid, status=status)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _BACKOFF[1])
