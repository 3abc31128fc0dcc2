"""Binds the listeners, runs the processes that serve them, and restarts those that die.

The master imports neither pydantic nor psycopg: they would stay in its memory for nothing.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pgmta import logs, signals
from pgmta.errors import ConfigError, PgmtaError
from pgmta.service import ServiceManager, Signals, start_part
from smtpd.process.maildrop_watch import MaildropWatch
from smtpd.process.plan import MasterPlan
from smtpd.process.plan_process import PlanProcess
from smtpd.process.sockets import listening
from smtpd.process.supervisor import GRACE_S, Supervisor

if TYPE_CHECKING:
    from pgmta.metrics.metrics_server import MetricsServer

log = logs.get("master")


class Master:
    """The parent of all serving processes; it takes no mail itself."""

    def __init__(self, plan: MasterPlan) -> None:
        self._plan = plan
        per_listener = listening(plan.listen, plan.processes)
        self._sockets = [[sockets[n] for sockets in per_listener] for n in range(plan.processes)]
        self._supervisors = [
            Supervisor(Path(plan.path), [sock.fileno() for sock in sockets])
            for sockets in self._sockets
        ]

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP replaces the processes, for the new file.

        Raises the error of a supervisor that ended by itself.
        """
        signals = Signals()
        self._manager = ServiceManager()
        if self._plan.attached:
            signals.attach()
        page = await self._serve_page()
        stop = signals.stop
        runs = [start_part("supervisor", supervisor.run, stop) for supervisor in self._supervisors]
        for listener in self._plan.listen:
            address = {"address": listener.address, "port": listener.port}
            if listener.socket:
                address = {"socket": listener.socket}
            log.info("listening", **address, processes=self._plan.processes)
        others = [
            start_part("reload", lambda: self._reloads(signals)),
            start_part("maildrop", MaildropWatch(self._plan).run),
        ]
        notes = [
            start_part("watchdog", self._manager.keep_watch),
            start_part("announcement", self._announce),
        ]
        await stop.wait()
        self._manager.stopping()
        if page:
            page.begin_stop()
        await _end(others)
        for supervisor in self._supervisors:
            supervisor.stop()
        _, slow = await asyncio.wait(runs, timeout=GRACE_S)
        if slow:
            for supervisor in self._supervisors:
                supervisor.signal(signal.SIGKILL)
            await asyncio.wait(slow)
        await _end(notes)
        if page:
            await page.stop()
        log.info("stopped")
        for run in runs:
            run.result()

    async def _announce(self) -> None:
        """Notify systemd once every supervisor has a process that accepts connections."""
        for supervisor in self._supervisors:
            await supervisor.accepting.wait()
        self._manager.ready(self._serving())

    def _serving(self) -> str:
        return f"takes mail with {len(self._supervisors)} processes"

    async def _serve_page(self) -> MetricsServer | None:
        """Return the server of figures once it answers. Raises ConfigError."""
        if not self._plan.metrics:
            return None
        from pgmta.config.metrics import MetricsPage
        from pgmta.metrics.metrics_server import MetricsServer  # and aiohttp, which takes 16 MB
        from smtpd.process.master_page import MasterPage

        page = MasterPage(self._supervisors)
        settings = MetricsPage.model_validate({"listen": self._plan.metrics})
        server = MetricsServer("smtpd", settings, page.scrape, page.problem)
        await server.start()
        return server

    async def _reloads(self, signals: Signals) -> None:
        """Replace the processes at each SIGHUP, one after the other."""
        while True:
            await signals.reload.wait()
            signals.reload.clear()
            self._manager.reloading()
            state = "the reload has failed"
            try:
                state = await self._reload(signals.stop.is_set)
            finally:  # systemd waits for the end of each reload
                self._manager.ready("; ".join(filter(None, (self._serving(), state))))

    async def _reload(self, stopped: Callable[[], bool]) -> str:
        """Replace the processes; return what is wrong with the file, '' if it is in use."""
        if not await self._read_again(stopped):
            return "the changed configuration has mistakes"
        replaced = 0
        for supervisor in self._supervisors:
            if await supervisor.replace():
                replaced += 1
            else:
                log.error("process kept as it was: its successor did not start")
        log.info("processes replaced", number=replaced)
        return ""

    async def _read_again(self, stopped: Callable[[], bool]) -> bool:
        try:
            plan = await asyncio.to_thread(_reread, self._plan.path, stopped)
        except ConfigError as error:
            log.error("configuration kept as it was", problems=error.problems)
            return False
        except Exception as error:  # no process could read the plan, or one of another version did
            log.error("configuration kept as it was", reason=str(error) or type(error).__name__)
            return False
        if not plan:  # because the master stops
            return False
        new, old = plan.lasting, self._plan.lasting
        changed = [name for name in new if new[name] != old[name]]
        if changed:
            problems = [f"{name}: needs a restart" for name in changed]
            log.error("configuration kept as it was", problems=problems)
            return False
        log.info("configuration read again")
        for warning in plan.warnings:
            log.warning("configuration", reason=warning)
        return True


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _reread(path: str, stopped: Callable[[], bool]) -> MasterPlan | None:
    with PlanProcess(["reread", "-c", path], stopped) as process:
        plan = process.read()
    if not plan and not stopped():
        raise PgmtaError(f"the process that reads {path} ended with code {process.status}")
    return plan


def run(arguments: list[str]) -> None:
    """Take mail by the options of `smtpd run`, until a signal stops it.

    Without a plan, as after an error, exits like the process that reads them.
    """
    with PlanProcess(["run", *arguments], signals.stop_came) as process:
        plan = process.read()
        if plan:
            logs.configure(plan.log, daemon="smtpd")
    if not plan:
        if process.status < 0 and not signals.stop_came():
            raise PgmtaError(f"signal {-process.status} ended the process that reads the file")
        sys.exit(0 if signals.stop_came() else process.status)
    asyncio.run(Master(plan).run())
