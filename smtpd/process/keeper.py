"""One serving process, kept alive on its listening sockets, and replaced without a gap."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from pgmta.errors import FormerDatabase
from pgmta.logs import get
from pgmta.postgres.locate import handed_down
from pgmta.service import first

GRACE = 40.0
"""Seconds for a process to stop; then it is killed."""

READY = b"ready\n"
"""The line that a serving process writes to its standard output once it accepts connections."""

FORMER = 3
"""Exit code of a serving process: the database is from before the first release."""

_BACKOFF = (0.1, 5.0)  # seconds before a restart: at first, at most
_STABLE = 10.0  # seconds after which a process counts as healthy
_MOST = 2  # processes that may be there when a successor starts: the current and an earlier one
_START = 60.0  # seconds that a successor has to become ready

log = get("master")


class Keeper:
    """Runs `smtpd serve` again and again, always one process that accepts connections.

    The listening sockets are the master's, so connections that wait to be accepted survive the end
    of a process. `replace` starts the successor first: both accept from the same sockets until the
    old process gets SIGTERM. It waits while two earlier ones have not ended yet.
    """

    def __init__(self, path: Path, uri: str, descriptors: list[int]) -> None:
        self._path = path
        self._uri = uri
        self._descriptors = descriptors
        self._current: Process | None = None
        self._since = 0.0  # when it started, by the monotonic clock
        self._children: set[Process] = set()
        self._ends: asyncio.Queue[Process] = asyncio.Queue()
        self._watches: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()  # some process has
        self._stopping = asyncio.Event()
        self._said: dict[Process, asyncio.Task[bytes]] = {}
        self.accepting = asyncio.Event()
        """Is set once a first process accepts connections."""

    async def run(self) -> None:
        """Serve until `stop`; return when the last process has ended. Raises FormerDatabase."""
        backoff = _BACKOFF[0]
        while not self._stopping.is_set():
            if not self._current and not await self._begin():
                await first(self._stopping, timeout=_BACKOFF[1])
                continue
            child = await self._ends.get()
            if child is not self._current or self._stopping.is_set():
                continue  # a process that was replaced, or a successor that did not start
            self._current = None
            if child.returncode == FORMER:
                raise FormerDatabase
            if time.monotonic() - self._since > _STABLE:
                backoff = _BACKOFF[0]
            log.error("process died, restarting", pid=child.pid, status=child.returncode)
            await first(self._stopping, timeout=backoff)
            backoff = min(backoff * 2, _BACKOFF[1])
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
        while len(self._children) > _MOST:
            self._ended.clear()
            await self._ended.wait()
        successor = await self._start()
        if not successor:
            return False
        said = b""
        try:
            async with asyncio.timeout(_START):
                said = await asyncio.shield(self._said[successor])
        except TimeoutError:
            pass
        finally:
            if said != READY and successor.returncode is None:
                successor.kill()
        if said != READY or successor.returncode is not None:
            return False
        old = self._current
        self._takes_over(successor)
        if old and old.returncode is None:
            self._retire(old)
        return True

    def _retire(self, child: Process) -> None:
        """End a process; kill it if it does not stop, because a hook may hold it for ever."""
        child.terminate()
        asyncio.get_running_loop().call_later(GRACE, self._kill, child)

    def _kill(self, child: Process) -> None:
        if child.returncode is None:
            log.error("process killed, because it did not stop", pid=child.pid, after=GRACE)
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

    async def _start(self) -> Process | None:
        """Start a process; return None if the system has no room for it."""
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "smtpd", "serve", "-c", str(self._path),
                "--descriptors", ",".join(map(str, self._descriptors)),
                stdin=PIPE,  # its end means that the master has died
                stdout=PIPE,
                pass_fds=self._descriptors,
                env={**os.environ, **handed_down(self._uri)},
            )  # fmt: skip
        except OSError as error:
            log.error("can't start a process", reason=str(error))
            return None
        self._children.add(child)
        assert child.stdout  # noqa: S101 - for the type checker
        self._said[child] = said = asyncio.create_task(child.stdout.readline())
        said.add_done_callback(self._hear)
        watch = asyncio.create_task(self._watch(child))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        if self._stopping.is_set():
            child.terminate()
        return child

    def _hear(self, said: asyncio.Task[bytes]) -> None:
        if not said.cancelled() and not said.exception() and said.result() == READY:
            self.accepting.set()

    async def _watch(self, child: Process) -> None:
        await child.wait()
        self._said.pop(child, None)
        self._children.discard(child)
        self._ends.put_nowait(child)
        self._ended.set()
