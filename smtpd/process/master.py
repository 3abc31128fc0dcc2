"""Binds the listeners, runs the processes that serve them, and restarts those that die."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from pgmta.config.loader import load
from pgmta.errors import ConfigError
from pgmta.logs import get
from pgmta.service import ServiceManager, Signals, report_error
from smtpd.config import SmtpdConfig
from smtpd.process.keeper import GRACE, Keeper
from smtpd.process.maildrop_watch import MaildropWatch
from smtpd.process.risks import container_gateway, risks
from smtpd.process.sockets import listening

if TYPE_CHECKING:
    from smtpd.process.master_page import MasterPage

log = get("master")


class Master:
    """The parent of all serving processes; it takes no mail itself."""

    def __init__(self, path: Path, config: SmtpdConfig, uri: str) -> None:
        self._path = path
        self._config = config
        per_listener = listening(config.listen, config.processes)
        self._sockets = [[sockets[n] for sockets in per_listener] for n in range(config.processes)]
        self._keepers = [
            Keeper(path, uri, [sock.fileno() for sock in sockets]) for sockets in self._sockets
        ]

    async def run(self, *, attached: bool = False) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP replaces the processes, for the new file.

        `attached` processes also end with their parent. Raises the error of a keeper that ended by
        itself.
        """
        signals = Signals()
        self._manager = ServiceManager()
        if attached:
            signals.attach()
        page = await self._serve_page()
        runs = [asyncio.create_task(keeper.run()) for keeper in self._keepers]
        for listener in self._config.listen:
            place = {"address": listener.address, "port": listener.port}
            if listener.socket:
                place = {"socket": str(listener.socket)}
            log.info("listening", **place, processes=self._config.processes)
        reloads = asyncio.create_task(self._reloads(signals.reload))
        maildrop = asyncio.create_task(MaildropWatch(self._config).run())
        notes = asyncio.gather(self._manager.keep_watch(), self._announce())
        for run in runs:
            report_error("keeper", run, signals.stop)
        report_error("reload", reloads)
        report_error("maildrop", maildrop)
        await signals.stop.wait()
        self._manager.stopping()
        if page:
            page.begin_stop()
        reloads.cancel()
        maildrop.cancel()
        await asyncio.gather(reloads, maildrop, return_exceptions=True)
        for keeper in self._keepers:
            keeper.stop()
        _, slow = await asyncio.wait(runs, timeout=GRACE)
        if slow:
            for keeper in self._keepers:
                keeper.signal(signal.SIGKILL)
            await asyncio.wait(slow)
        notes.cancel()
        await asyncio.gather(notes, return_exceptions=True)
        if page:
            await page.stop()
        log.info("stopped")
        for run in runs:
            run.result()

    async def _announce(self) -> None:
        """Notify systemd once every keeper has a process that accepts connections."""
        for keeper in self._keepers:
            await keeper.accepting.wait()
        self._manager.ready(self._serving())

    def _serving(self) -> str:
        return f"takes mail with {len(self._keepers)} processes"

    async def _serve_page(self) -> MasterPage | None:
        """Return the page of figures once it is served. Raises ConfigError."""
        if not self._config.metrics.listen:
            return None
        from smtpd.process.master_page import MasterPage  # and aiohttp, which takes 16 MB

        page = MasterPage(self._keepers)
        await page.serve(self._config.metrics)
        return page

    async def _reloads(self, asked: asyncio.Event) -> None:
        """Replace the processes at each SIGHUP, one after the other."""
        while True:
            await asked.wait()
            asked.clear()
            self._manager.reloading()
            if not self._read_again():
                self._manager.ready(f"{self._serving()}; the changed configuration has mistakes")
                continue
            replaced = 0
            for keeper in self._keepers:
                if await keeper.replace():
                    replaced += 1
                else:
                    log.error("process kept as it was: its successor did not start")
            log.info("processes replaced", number=replaced)
            self._manager.ready(self._serving())

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
        for risk in risks(config, container_gateway()):
            log.warning("configuration", reason=f"{self._path}: {risk}")
        return True


def _sockets(config: SmtpdConfig) -> dict[str, object]:
    """Return the settings of the sockets, which last as long as the master."""
    places = [(at.address, at.port, at.socket, at.backlog) for at in config.listen]
    return {"listen": places, "processes": config.processes, "user": config.user,
            "metrics": config.metrics}  # fmt: skip
