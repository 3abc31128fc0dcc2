"""The interface of a mail server in the bench, and the process of one that is not pgmta."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from bench.cpu import Groups
from bench.daemons import DaemonError, greets
from bench.peer.cells import Cell

START_TIMEOUT_S = 30.0


class Running(Protocol):
    """A started server: where it listens, its processes by group, and questions to it."""

    port: int
    groups: Groups
    notes: list[str]

    def check(self) -> None:
        """Raise DaemonError when it has ended."""
        ...

    def queued(self) -> int:
        """Return how many messages are in its queue."""
        ...

    def commits(self) -> float:
        """Return the commits of its database since the start, 0 without one."""
        ...


class System(Protocol):
    """A mail server that can be started for a cell."""

    name: str
    about: str

    def start(
        self, cell: Cell, directory: Path, next_hop: int | None
    ) -> AbstractContextManager[Running]:
        """Run it on an empty queue in the directory; it delivers to the port, or not at all."""
        ...


def files(*places: Path, ending: str = "") -> int:
    """Count the files below some folders whose names end like that."""
    return sum(
        name.endswith(ending)
        for place in places
        for _, _, names in os.walk(place)
        for name in names
    )


class Daemon:
    """The main process of a peer, leader of a separate session; its output goes to a file."""

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
                cwd=log.parent,
            )

    def tail(self) -> str:
        """Return the end of what it said."""
        return self.log.read_text(errors="replace")[-1500:]

    def check(self) -> None:
        """Raise when it has ended."""
        if self.process.poll() is not None:
            raise DaemonError(f"{self.name} ended with {self.process.returncode}\n{self.tail()}")

    def wait_greeting(self, port: int) -> None:
        """Wait until it greets on the port."""
        end = time.monotonic() + START_TIMEOUT_S
        while not greets(port):
            self.check()
            if time.monotonic() > end:
                raise DaemonError(f"{self.name} does not greet\n{self.tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, and then whatever is left of its session."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
