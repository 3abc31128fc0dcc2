"""The process that owns an embedded PostgreSQL: it starts and stops the server.

A server that dies is started again. The kernel releases the lock on the folder when the process
ends, however that happens. A server that a killed owner has left goes on under the next owner.

The module imports neither psycopg nor pydantic: they would take 15 MB as long as the server runs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from pgmta.console.journal import marked_words
from pgmta.errors import StoreUnavailable
from pgmta.mail.text import printable, printable_lines
from pgmta.postgres.embedded.embedded_server import COMMAND, DATABASE, OWNER, EmbeddedServer
from pgmta.postgres.embedded.folders import hold, make_parents
from pgmta.postgres.embedded.programs import tool
from pgmta.service import ServiceManager, Signals, first

_DAEMON_ROLES = ("pgmta_smtpd", "pgmta_queued", "pgmta_web", "pgmta_api")
_LOOK_INTERVAL_S = 0.5  # at a server whose end the system does not report
_RESTART_PAUSE_S = 1.0  # before another try to start a server that died
_REPORT_INTERVAL_S = 60.0  # for lines that the server does not start
_LEAVE_TIMEOUT_S = 10  # for the other children of `queuectl up`, which end at the same time


class Owner:
    """The owner of the server in a folder."""

    def __init__(self, directory: Path) -> None:
        """Lock the folder. Raises ServerRefused, which names the owner that there is already."""
        make_parents(directory)
        self._lock = hold(directory / "postgres.owner", COMMAND, f" on {socket.gethostname()}")
        self._server = EmbeddedServer(directory)
        self._told = -_REPORT_INTERVAL_S

    async def run(self, *, attached: bool = False) -> None:
        """Run the server until SIGTERM or SIGINT, or until the end of an `attached` stdin.

        Prints where the server listens once it does. Raises StoreUnavailable if it does not start
        at first, with the end of its log. ServerRefused is one that an operator has to repair.
        """
        signals, manager = Signals(), ServiceManager()
        if attached:
            signals.attach()
        watch = asyncio.create_task(manager.keep_watch())
        try:
            await asyncio.to_thread(self._server.start, _DAEMON_ROLES)
            print(printable(f"PostgreSQL in {self._server.data}: {self._psql()}"), flush=True)
            manager.ready("runs PostgreSQL")
            while not signals.stop.is_set():
                await self._ended(signals.stop)
                if not signals.stop.is_set():
                    await self._start_again(signals.stop)
        finally:
            manager.stopping()
            if signals.orphaned:
                await asyncio.to_thread(self._server.stop, "smart", _LEAVE_TIMEOUT_S)
            await asyncio.to_thread(self._server.stop)
            watch.cancel()

    def _psql(self) -> str:
        psql = "psql" if shutil.which("psql") else tool("psql")
        return shlex.join([psql, "-h", str(self._server.sockets), "-U", OWNER, DATABASE])

    async def _ended(self, stop: asyncio.Event) -> None:
        """Return when the server has ended, or `stop` is set."""
        loop = asyncio.get_running_loop()
        while self._server.running() and not stop.is_set():
            if (end := self._server.open_end()) is None:
                await first(stop, timeout=_LOOK_INTERVAL_S)
                continue
            ended = asyncio.Event()
            loop.add_reader(end, ended.set)
            try:
                await first(stop, ended)
            finally:
                loop.remove_reader(end)
                os.close(end)

    async def _start_again(self, stop: asyncio.Event) -> None:
        try:
            if not self._server.exists():  # a new, empty server would hide that the data are gone
                raise StoreUnavailable(f"{self._server.data} has gone")
            if await asyncio.to_thread(self._server.start, _DAEMON_ROLES):
                _tell("warning: the embedded PostgreSQL had died and was started again")
        except Exception as error:  # whatever it is: nothing else would start the server again
            if time.monotonic() > self._told + _REPORT_INTERVAL_S:
                self._told = time.monotonic()
                _tell(f"error: the embedded PostgreSQL does not start: {error}")
            await first(stop, timeout=_RESTART_PAUSE_S)


def _tell(text: str) -> None:
    with suppress(OSError):  # the disk with the log may be as full as that of the data
        print(marked_words(printable_lines(text)), file=sys.stderr, flush=True)
