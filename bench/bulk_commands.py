"""An operator's bulk commands, run one after another while mail flows."""

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.daemons import DaemonError
from bench.helper import Helper
from bench.progress import log
from bench.windows import Window

DOMAIN = "dead.example"
LIMIT = 600.0  # seconds for a command, or for queued to work the rows off
POLL = 0.25  # seconds


@dataclass(frozen=True)
class BulkCommand:
    """Name a command of queuectl for all rows of the domain, with its further words."""

    name: str
    words: Sequence[str] = ()


COMMANDS = (
    BulkCommand("release"),
    BulkCommand("retry"),
    BulkCommand("hold", ("--reason", "bench")),
    BulkCommand("delete", ("--reason", "bench")),
)


@dataclass(frozen=True)
class Measured:
    """Hold the figures of a command: rows changed, its seconds, those of queued after it."""

    name: str
    rows: int
    seconds: float
    afterwards: float


@dataclass(frozen=True)
class Queuectl:
    """Name the program, its configuration and its database."""

    queuectl: Path
    config: Path
    uri: str

    def run(self, command: BulkCommand) -> int:
        """Run the command to its end and return the rows it changed."""
        words = [command.name, "-c", str(self.config), "--domain", DOMAIN, "--yes", "--json"]
        done = subprocess.run(
            [self.queuectl, *words, *command.words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            raise DaemonError(f"queuectl {command.name}: {done.stderr[-500:]}")
        return int(json.loads(done.stdout)["changed"])

    def deleting(self) -> bool:
        """Return whether rows wait to be deleted."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            row = connection.execute(
                "SELECT EXISTS (SELECT FROM queue WHERE status = 'DELETE')"
            ).fetchone()
        return bool(row and row[0])


class Operator(threading.Thread):
    """Run the commands; windows without and with a command alternate, without one first and last.

    The window of a deletion lasts until queued has removed the rows. The window of a release lasts
    `tail` seconds longer than the command, because queued begins to try the released rows.
    """

    def __init__(self, queuectl: Queuectl, warm: float, quiet: float, tail: float) -> None:
        super().__init__(daemon=True)
        self.windows: list[Window] = []
        self.measured: list[Measured] = []
        self.failure: str | None = None
        self._queuectl = queuectl
        self._warm, self._quiet, self._tail = warm, quiet, tail
        self._over = threading.Event()
        self._source: Helper | None = None

    def begin(self, source: Helper) -> None:
        """Start, now that the source sends; it is stopped after the last window."""
        self._source = source
        self.start()

    def run(self) -> None:
        """Run all commands, with windows between them."""
        try:
            self._wait(self._warm)
            self._pause()
            for command in COMMANDS:
                if self._over.is_set():
                    return
                self._run_command(command)
                self._pause()
        except (
            DaemonError,
            OSError,
            ValueError,
            psycopg.Error,
            subprocess.SubprocessError,
        ) as error:
            self.failure = str(error)
        finally:
            if self._source:
                self._source.tell("stop")

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if self.failure:
            raise DaemonError(self.failure)

    def end(self) -> bool:
        """Start no further command; return whether all have run."""
        complete = len(self.windows) == 2 * len(COMMANDS) + 1
        self._over.set()
        if self.ident:
            self.join()
        return complete

    def _wait(self, seconds: float) -> None:
        self._over.wait(seconds)

    def _pause(self) -> None:
        start = time.monotonic()
        self._wait(self._quiet)
        self.windows.append(Window(start, time.monotonic()))

    def _run_command(self, command: BulkCommand) -> None:
        start = time.monotonic()
        rows = self._queuectl.run(command)
        ready = time.monotonic()
        if command.name == "release":
            self._wait(self._tail)
        if command.name == "delete":
            self._wait_deleted(ready + LIMIT)
        end = time.monotonic()
        self.windows.append(Window(start, end, command.name))
        self.measured.append(Measured(command.name, rows, ready - start, end - ready))
        after = end - ready
        log(f"{command.name}: {rows} rows in {ready - start:.1f} s, {after:.1f} s more after it")

    def _wait_deleted(self, deadline: float) -> None:
        while self._queuectl.deleting() and not self._over.is_set():
            if time.monotonic() > deadline:
                raise DaemonError(f"queued has not deleted all rows within {LIMIT:g} s")
            self._wait(POLL)
