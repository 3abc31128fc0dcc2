"""The pipes between the master and a serving process: ready, and figures on demand."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process

from pgmta.logs import get
from pgmta.metrics.series import Values, load

READY_LINE = b"ready\n"
"""The line that a serving process writes to its standard output once it accepts connections."""

PROBLEM_KEY = "problem"
"""The name under which figures say why the process takes no mail; no series has it."""

MAX_LINE_OCTETS = 1 << 20

_ANSWER_TIMEOUT_S = 3.0

log = get("master")


class ChildPipe:
    """Reads what a serving process says, to its end. One octet on its standard input asks."""

    def __init__(self, child: Process) -> None:
        loop = asyncio.get_running_loop()
        self._child = child
        self.ready: asyncio.Future[bool] = loop.create_future()
        """Whether the process accepts connections; False once it has ended before that."""
        self.values: Values = {}
        """Its last figures."""
        self._answer: asyncio.Future[bool] | None = None
        self.end = asyncio.create_task(self._read())
        """Ends with the pipe."""

    async def _read(self) -> None:
        stdout = self._child.stdout
        try:
            while stdout and (line := await stdout.readline()):
                if line == READY_LINE:
                    if not self.ready.done():
                        self.ready.set_result(True)
                    continue
                self._take(line)
        except ValueError:
            log.error("a process says nonsense", pid=self._child.pid)
        finally:
            if not self.ready.done():
                self.ready.set_result(False)
            self._answered(False)

    def _take(self, line: bytes) -> None:
        self.values = load(line)
        self._answered(True)

    def _answered(self, came: bool) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(came)

    async def ask(self) -> bool:
        """Learn the present figures; return whether an answer came within 3 s.

        The figures of a process that hangs stay as they were.
        """
        stdin = self._child.stdin
        if not stdin or stdin.is_closing() or self.end.done():
            return False
        if not self._answer or self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
            stdin.write(b"?")
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer), _ANSWER_TIMEOUT_S)
        except TimeoutError:
            return False

    @property
    def serves(self) -> bool:
        """Whether the process has begun to accept connections, and has not ended."""
        return self.ready.done() and self.ready.result() and not self.end.done()

    async def ask_problem(self) -> str:
        """Learn the present figures; return why the process takes no mail, '' if it does."""
        if not await self.ask():
            return f"a process does not answer: pid {self._child.pid}"
        reasons = self.values.get(PROBLEM_KEY)
        return next(iter(reasons))[0] if reasons else ""
