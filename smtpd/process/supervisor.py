"""One serving process, kept alive on its listening sockets, and replaced without a gap."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from pgmta.errors import FormerDatabase
from pgmta.logs import get
from pgmta.metrics.series import Values, add, without_gauges
from pgmta.service import first
from smtpd.process.child_pipe import MAX_LINE_OCTETS, ChildPipe
from smtpd.server.smtpd_series import SERIES

GRACE_S = 40.0
"""For a process to stop; then it is killed."""

FORMER_DATABASE = 3
"""Exit code of a serving process: the database is from before the first release."""

_RESTART_PAUSES_S = (0.1, 5.0)  # at first, and at most
_STABLE_S = 10.0  # a process that has run for longer counts as healthy
_MAX_PROCESSES = 2  # that may be there when a successor starts: the current and an earlier one
_LAST_FIGURES_TIMEOUT_S = 1.0  # of a process that has ended
_START_TIMEOUT_S = 60.0  # for a successor to become ready

log = get("master")


class Supervisor:
    """Runs `smtpd serve` again and again, always one process that accepts connections.

    The listening sockets are the master's, so connections that wait to be accepted survive the end
    of a process. `replace` starts the successor first: both accept from the same sockets until the
    old process gets SIGTERM. It waits while two earlier ones have not ended yet.
    """

    def __init__(self, path: Path, descriptors: list[int]) -> None:
        self._path = path
        self._descriptors = descriptors
        self._current: Process | None = None
        self._since = 0.0  # when it started, by the monotonic clock
        self._children: dict[Process, ChildPipe] = {}
        self.past: Values = {}
        """Counts of the processes that have ended."""
        self._ends: asyncio.Queue[Process] = asyncio.Queue()
        self._watches: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()  # set when some process has ended
        self._stopping = asyncio.Event()
        self.accepting = asyncio.Event()
        """Is set once a first process accepts connections."""

    async def run(self) -> None:
        """Serve until `stop`; return when the last process has ended. Raises FormerDatabase."""
        backoff = _RESTART_PAUSES_S[0]
        while not self._stopping.is_set():
            if not self._current and not await self._begin():
                await first(self._stopping, timeout=_RESTART_PAUSES_S[1])
                continue
            child = await self._ends.get()
            if child is not self._current or self._stopping.is_set():
                continue  # this was a process that was replaced, or a successor that did not start
            self._current = None
            if child.returncode == FORMER_DATABASE:
                raise FormerDatabase
            if time.monotonic() - self._since > _STABLE_S:
                backoff = _RESTART_PAUSES_S[0]
            log.error("process died, restarting", pid=child.pid, status=child.returncode)
            await first(self._stopping, timeout=backoff)
            backoff = min(backoff * 2, _RESTART_PAUSES_S[1])
        while self._watches:
            await asyncio.wait(set(self._watches))

    async def _begin(self) -> bool:
        child = await self._start()
        if child and self._current:
            self._retire(child)  # a successor has taken over meanwhile
        elif child:
            self._takes_over(child)
        return child is not None

    def _takes_over(self, child: Process) -> None:
        self._current = child
        self._since = time.monotonic()

    async def replace(self) -> bool:
        """Start a successor, and end the old process once it accepts; False if it does not."""
        while len(self._children) > _MAX_PROCESSES:
            self._ended.clear()
            await self._ended.wait()
        successor = await self._start()
        if not successor:
            return False
        ready = self._children[successor].ready
        try:
            await asyncio.wait([ready], timeout=_START_TIMEOUT_S)
        finally:
            serves = ready.done() and ready.result()
            if not serves and successor.returncode is None:
                successor.kill()
        if not serves or successor.returncode is not None:
            return False
        old = self._current
        self._takes_over(successor)
        if old and old.returncode is None:
            self._retire(old)
        return True

    def _retire(self, child: Process) -> None:
        """End a process; kill it if it does not stop, because a hook may hold it for ever."""
        child.terminate()
        asyncio.get_running_loop().call_later(GRACE_S, self._kill, child)

    def _kill(self, child: Process) -> None:
        if child.returncode is None:
            log.error("process killed, because it did not stop", pid=child.pid, after=GRACE_S)
            child.kill()

    def stop(self) -> None:
        """End all processes; sessions that are in their content may end it."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to every process that has not ended."""
        for child in self._children:
            if child.returncode is None:
                child.send_signal(number)

    @property
    def pipes(self) -> list[ChildPipe]:
        """The pipes of the processes that have not ended."""
        return list(self._children.values())

    async def _start(self) -> Process | None:
        """Start a process; return None if the system has no room for it."""
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "smtpd", "serve", "-c", str(self._path),
                "--descriptors", ",".join(map(str, self._descriptors)),
                stdin=PIPE,  # its end tells the process that the master has died
                stdout=PIPE,
                limit=MAX_LINE_OCTETS,
                pass_fds=self._descriptors,
            )  # fmt: skip
        except OSError as error:
            log.error("can't start a process", reason=str(error))
            return None
        self._children[child] = pipe = ChildPipe(child)
        pipe.ready.add_done_callback(self._hear)
        watch = asyncio.create_task(self._watch(child))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        if self._stopping.is_set():
            child.terminate()
        return child

    def _hear(self, ready: asyncio.Future[bool]) -> None:
        if not ready.cancelled() and ready.result():
            self.accepting.set()

    async def _watch(self, child: Process) -> None:
        await child.wait()
        pipe = self._children[child]
        await asyncio.wait([pipe.end], timeout=_LAST_FIGURES_TIMEOUT_S)
        del self._children[child]
        # before its figures are read: bad ones may not prevent the restart
        self._ends.put_nowait(child)
        self._ended.set()
        add(self.past, without_gauges(SERIES, pipe.values))
