"""A whole relay that faults are done to: what dies is started again, as a supervisor would."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from pgmta.errors import StoreUnavailable
from tests.support.daemons import Daemon, Queued, Smtpd
from tests.support.database import PrivateServer
from tests.support.ledger import Ledger
from tests.support.nexthop import NextHop, as_usual
from tests.support.submit import Client
from tests.support.system import System
from tests.support.waiting import PATIENCE, free_port, until

GOOD, FAULTY = "good.example", "faulty.example"
BACK = 30.0
"""Seconds from the end of a fault within which mail has to go through."""

_DISK = "600m"
_MISCOUNTED = """
SELECT * FROM (SELECT sum(settled + not_settled + not_claimed + gone + moved_on)::integer AS counted
    FROM outcome_counts) AS c,
    (SELECT count(DISTINCT (message_id, row_id, lease_token)) AS attempts FROM attempts
    WHERE event IN ('delivered', 'deferred', 'failed', 'unknown')) AS a
WHERE counted IS DISTINCT FROM attempts
"""
_TIMEOUTS = dict.fromkeys(("connect", "greeting", "command", "final"), "3s")
# For the small disk; and so that commits may be made to wait for a standby.
_SETTINGS = {
    "max_wal_size": "128MB",
    "min_wal_size": "64MB",
    "wal_level": "replica",
    "max_wal_senders": "1",
}


@contextmanager
def disk() -> Iterator[tuple[Path, bool]]:
    """A folder for a server, if possible on a small separate file system (needs root)."""
    folder = Path(tempfile.mkdtemp(prefix="pgmta-test-"))
    folder.chmod(0o711)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=0711", "tmpfs", str(folder)]
    small = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield folder, small
    finally:
        if small:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        subprocess.run(["rm", "-rf", str(folder)], check=True)


class Rig:
    """smtpd with two processes, two queued, a good and a faulty next hop, and their own server."""

    def __init__(self, folder: Path, data: Path, small: bool, ledger: Ledger) -> None:
        self.data = data
        self.small = small
        self.ledger = ledger
        self.server = PrivateServer(data)
        with psycopg.connect(self.server.uri, autocommit=True) as db:
            for name, value in _SETTINGS.items():
                db.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        self.server.crash()
        self.server.start()
        self.system = System(folder, self.server.uri)
        self.good = self.system.hop(ledger.recorder())
        self.faulty = self.system.hop(ledger.recorder())
        listen = [{"port": free_port(), "role": "internal", "on_failed": "hold"}]
        self.smtpd = self.system.smtpd(
            processes=2, ingest={"wait": "2s", "patience": "1s"}, listen=listen
        )
        self.workers = [
            self.system.queued(
                routes={GOOD: self.good.target, FAULTY: self.faulty.target},
                process={"lease": "6s", "drain": "3s"},
                delivery={"timeouts": _TIMEOUTS},
            )
            for _ in range(2)
        ]
        self.problems: list[str] = []
        self.found: list[str] = []
        """Problems that `judge` has found."""
        self.ended: dict[Daemon, bool] = {}
        """Daemons to start after all faults of a round; whether each got a signal to end."""
        self.largest = 0  # octets of memory that one process has had
        self._to_reset: set[str] = set()  # settings that another fault kept as they were

    @property
    def daemons(self) -> list[Smtpd | Queued]:
        return [self.smtpd, *self.workers]

    # -- for faults --

    def admin(self) -> psycopg.Connection:
        """A session that may do everything, also in a database that is read-only."""
        return psycopg.connect(
            self.server.uri,
            autocommit=True,
            application_name="test",
            options="-c default_transaction_read_only=off -c statement_timeout=5s",
        )

    def change(self, statement: str) -> bool:
        """Change a setting of the server; return False if other faults prevent that for 10 s."""

        def changed() -> bool:
            with suppress(psycopg.Error), self.admin() as db:
                db.execute(statement.encode())
                db.execute("SELECT pg_reload_conf()")
                return True
            return False

        with suppress(AssertionError):
            return until(changed, 10)
        return False

    def reset(self, name: str) -> None:
        """Give a setting its usual value again, at the latest when the round is over."""
        if not self.change(f"ALTER SYSTEM RESET {name}"):
            self._to_reset.add(name)

    def script(self, hop: NextHop, script: object) -> None:
        """Let a hop do something else, or its usual work again."""
        hop.script = self.ledger.recorder(script or as_usual)  # type: ignore[arg-type]

    def start(self, daemon: Daemon) -> None:
        """Start a daemon that has ended, as often as it takes: its port may not be free yet.

        Children of a killed smtpd may still log `serving`, and have its port. `listening` is the
        new master's.
        """
        end = time.monotonic() + BACK
        event = "listening" if daemon is self.smtpd else "ready"
        while time.monotonic() < end:
            count = len(daemon.events(event)) + 1
            daemon.start()
            with suppress(AssertionError):
                daemon.wait_log(event, count, max(0.0, end - time.monotonic()))
                return
        self.problems.append(f"{daemon.name} does not start")

    def _start_again(self, daemon: Daemon, *, told: bool) -> None:
        try:
            if told:
                daemon.wait()
        except AssertionError as error:
            self.problems.append(str(error).partition("\n")[0])
            daemon.kill()
        self.start(daemon)

    def start_server(self) -> bool:
        """Start PostgreSQL if it does not run; return False if it cannot, on a full disk say."""
        try:
            self.server.start()
        except (StoreUnavailable, psycopg.Error):
            return False
        return True

    def supervise(self) -> None:
        """Start what faults have ended; and what has ended by itself, and say so."""
        until(self.start_server, BACK)
        for name in self._to_reset:
            assert self.change(f"ALTER SYSTEM RESET {name}"), name
        self._to_reset.clear()
        while self.ended:
            daemon, told = self.ended.popitem()
            self._start_again(daemon, told=told)
        for daemon in self.daemons:
            if not daemon.alive:
                self.problems.append(f"{daemon.name} ended with {daemon.process.returncode}")
                self.start(daemon)

    # -- what has to hold --

    def measure(self) -> None:
        """Note how much memory the processes have."""
        for daemon in self.daemons:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(daemon.pid)
                for each in (process, *process.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        self.largest = max(self.largest, each.memory_info().rss)
        for hop in (self.good, self.faulty):
            hop.commands.clear()
            hop.transactions[:-100] = []

    def back(self) -> float:
        """Seconds until a mail goes through from now on; more than BACK where none does."""
        began = time.monotonic()

        def accepted() -> int:
            with suppress(OSError, AssertionError), Client(self.smtpd.port, 10) as client:
                number = self.ledger.send(client, [GOOD])
                return number if self.ledger.codes[number] == 250 else 0
            return 0

        with suppress(AssertionError):
            (recipient,) = self.ledger.recipients[until(accepted, 2 * BACK)]
            until(lambda: self.ledger.arrived[recipient], 2 * BACK)
        return time.monotonic() - began

    def end(self) -> None:
        """Wait until all accepted mail is delivered; release rows that a hop refused for good."""

        def idle() -> bool:
            with suppress(psycopg.Error):
                self.system.ask(
                    "UPDATE queue SET status = 'QUEUED'"
                    " WHERE status = 'HOLD' AND hold_reason = 'undeliverable'"
                )
                return not self.system.ask("SELECT id FROM queue LIMIT 1")
            return False

        with suppress(AssertionError):
            self.smtpd.stop()  # first: it may be storing mail of a session that broke
        with suppress(AssertionError):
            until(idle, 2 * PATIENCE)
        for worker in self.workers:
            with suppress(AssertionError):
                worker.stop()

    def judge(self) -> list[str]:
        """Everything that must not be, at the end of a run."""
        ledger, found = self.ledger, [*self.problems, *self.ledger.altered]
        found += [f"left in the queue: {row}" for row in self.system.queue()[:20]]
        for table, column in (("messages", "id"), ("message_chunks", "message_id")):
            taken = f"SELECT DISTINCT {column} AS id FROM {table}"
            if table == "message_chunks":  # orphans wait for their retention
                taken += " WHERE message_id IN (SELECT id FROM messages)"
            found += [f"left in {table}: {row['id']}" for row in self.system.ask(taken)[:20]]
        reasons = {
            row["recipient"]: row["possible"]
            for row in self.system.ask(
                "SELECT recipient, count(DISTINCT lease_token) AS possible FROM attempts"
                " WHERE event IN ('unknown', 'delivered') GROUP BY recipient"
            )
        }
        found += [f"attempts counted wrongly: {row}" for row in self.system.ask(_MISCOUNTED)]
        for number, recipients in ledger.recipients.items():
            code = ledger.codes.get(number, -1)
            for recipient in recipients:
                times = ledger.arrived[recipient]
                if code == 250 and not times:
                    found.append(f"lost: {recipient}")
                if code not in (0, 250) and times:
                    found.append(f"got {code}, and delivered: {recipient}")
                if times > 1 and times > reasons.get(recipient, 0):
                    found.append(f"{times} copies without a reason: {recipient}")
        for daemon in self.daemons:
            for entry in daemon.log:
                if entry.get("level") in ("raw", "critical") and "can't listen" not in str(entry):
                    found.append(f"{daemon.name}: {entry['event']}")
        self.found = found
        return found

    def clean(self) -> None:
        for daemon in self.daemons:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                os.killpg(daemon.pid, signal.SIGCONT)
        self.system.clean()
        self.server.crash()
        print("\n".join(self.found))  # once more, behind the logs
