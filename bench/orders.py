"""An operator's bulk commands, given one after another while mail flows."""

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
LOOK = 0.25  # seconds between two looks at the rows


@dataclass(frozen=True)
class Order:
    """A command of queuectl for all rows of the domain."""

    name: str
    words: Sequence[str] = ()


ORDERS = (
    Order("release"),
    Order("retry"),
    Order("hold", ("--reason", "bench")),
    Order("delete", ("--reason", "bench")),
)


@dataclass(frozen=True)
class Carried:
    """What became of an order: rows it changed, its seconds, and those that queued needed then."""

    name: str
    rows: int
    seconds: float
    afterwards: float


@dataclass(frozen=True)
class Desk:
    """Where the orders are given: command, its configuration, the database behind it."""

    queuectl: Path
    config: Path
    uri: str

    def give(self, order: Order) -> int:
        """Run the command to its end and return the rows it changed."""
        words = [order.name, "-c", str(self.config), "--domain", DOMAIN, "--yes", "--json"]
        done = subprocess.run(
            [self.queuectl, *words, *order.words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            raise DaemonError(f"queuectl {order.name}: {done.stderr[-500:]}")
        return int(json.loads(done.stdout)["changed"])

    def deleting(self) -> bool:
        """Whether rows wait to be deleted."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            row = connection.execute(
                "SELECT EXISTS (SELECT FROM queue WHERE status = 'DELETE')"
            ).fetchone()
        return bool(row and row[0])


class Operator(threading.Thread):
    """Gives the orders; windows without and with a command alternate, without one first and last.

    The window of a deletion lasts until queued has removed the rows, that of a release `tail`
    seconds longer than the command: queued begins to try what is due again.
    """

    def __init__(self, desk: Desk, warm: float, quiet: float, tail: float) -> None:
        super().__init__(daemon=True)
        self.windows: list[Window] = []
        self.carried: list[Carried] = []
        self.failure: str | None = None
        self._desk = desk
        self._warm, self._quiet, self._tail = warm, quiet, tail
        self._over = threading.Event()
        self._source: Helper | None = None

    def begin(self, source: Helper) -> None:
        """Start, now that the source sends; it is stopped after the last window."""
        self._source = source
        self.start()

    def run(self) -> None:
        """Work through the orders."""
        try:
            self._wait(self._warm)
            self._pause()
            for order in ORDERS:
                if self._over.is_set():
                    return
                self._carry_out(order)
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
        """Give no further order; return whether all had been given."""
        complete = len(self.windows) == 2 * len(ORDERS) + 1
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

    def _carry_out(self, order: Order) -> None:
        start = time.monotonic()
        rows = self._desk.give(order)
        ready = time.monotonic()
        if order.name == "release":
            self._wait(self._tail)
        if order.name == "delete":
            self._wait_deleted(ready + LIMIT)
        end = time.monotonic()
        self.windows.append(Window(start, end, order.name))
        self.carried.append(Carried(order.name, rows, ready - start, end - ready))
        log(
            f"{order.name}: {rows} rows in {ready - start:.1f} s, {end - ready:.1f} s more after it"
        )

    def _wait_deleted(self, deadline: float) -> None:
        while self._desk.deleting() and not self._over.is_set():
            if time.monotonic() > deadline:
                raise DaemonError(f"queued has not deleted all rows within {LIMIT:g} s")
            self._wait(LOOK)
