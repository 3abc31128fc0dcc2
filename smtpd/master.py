"""Binds the listeners, runs the processes that serve them, and restarts those that die."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

from pgmta.config.loader import load
from pgmta.errors import ConfigError, PgmtaError
from pgmta.logs import get
from pgmta.service import Signals
from smtpd.config import Listener, SmtpdConfig
from smtpd.keeper import GRACE, Keeper

log = get("master")


def bind(listener: Listener, count: int) -> list[socket.socket]:
    """Return one listening socket for each process.

    Each has its own accept queue, shared out by the kernel (SO_REUSEPORT); the master keeps them
    open, so that connections survive the restart of a process. Raises PgmtaError.
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
        raise PgmtaError(
            f"can't listen on {listener.address} port {listener.port}: {error.strerror}"
        ) from None
    return sockets


class Master:
    """The parent of all serving processes; it takes no mail itself."""

    def __init__(self, path: Path, config: SmtpdConfig, uri: str) -> None:
        self._path = path
        self._config = config
        per_listener = [bind(listener, config.processes) for listener in config.listen]
        self._sockets = [[sockets[n] for sockets in per_listener] for n in range(config.processes)]
        self._keepers = [
            Keeper(path, uri, [sock.fileno() for sock in sockets]) for sockets in self._sockets
        ]

    async def run(self, *, attached: bool = False) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP replaces the processes, for the new file.

        `attached` processes also end with their parent.
        """
        signals = Signals()
        if attached:
            signals.attach()
        runs = [asyncio.create_task(keeper.run()) for keeper in self._keepers]
        for listener in self._config.listen:
            log.info("listening", address=listener.address, port=listener.port,
                     processes=self._config.processes)  # fmt: skip
        reloads = asyncio.create_task(self._reloads(signals.reload))
        await signals.stop.wait()
        reloads.cancel()
        await asyncio.gather(reloads, return_exceptions=True)
        for keeper in self._keepers:
            keeper.stop()
        _, slow = await asyncio.wait(runs, timeout=GRACE)
        if slow:
            for keeper in self._keepers:
                keeper.signal(signal.SIGKILL)
            await asyncio.wait(slow)
        log.info("stopped")

    async def _reloads(self, asked: asyncio.Event) -> None:
        """Replace the processes at each SIGHUP, one after the other."""
        while True:
            await asked.wait()
            asked.clear()
            if not self._read_again():
                continue
            replaced = 0
            for keeper in self._keepers:
                if await keeper.replace():
                    replaced += 1
                else:
                    log.error("process kept as it was: its successor did not start")
            log.info("processes replaced", number=replaced)

    def _read_again(self) -> bool:
        try:
            config = load(self._path, SmtpdConfig)
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return False
        new, old = _sockets(config), _sockets(self._config)
        changed = [name for name in new if new[name] != old[name]]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.error("configuration kept as it was", problems=problems)
            return False
        log.info("configuration read again")
        return True


def _sockets(config: SmtpdConfig) -> dict[str, object]:
    """Return the settings of the sockets, which last as long as the master."""
    places = [(listener.address, listener.port, listener.backlog) for listener in config.listen]
    return {"listen": places, "processes": config.processes}
