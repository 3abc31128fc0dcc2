"""One run of bench/rates: some queued in two network namespaces, a rate, and a fault."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml
from psycopg.conninfo import conninfo_to_dict

from bench.apart import across
from bench.daemons import Product
from bench.database import Server, fresh
from bench.helper import Helper, HelperError
from bench.namespaces import PROGRAMS, Namespaces
from pgmta.store.admin.migrate import migrate

USED, OTHER = "two.example", "a.example"
"""Credentials, and domains of senders: one has two campaigns."""
QUIET_S = 8.0  # before a fault
STOPPED_S = 5.0  # by SIGSTOP
CLOCK_ERRORS_S = (2, -2, 0)  # of the workers
NEAR_TRIP_S = 0.0004  # to PostgreSQL and back, unless a run names another time
FAR_TRIPS_S = {"5 ms": 0.005, "20 ms": 0.02, "50 ms": 0.05}
SLOW_SYNC, SLOW_SYNC_MS = "slow sync", 10
BUSY, BUSY_PROCESSES = "busy", 8
CONDITIONS = (*FAR_TRIPS_S, SLOW_SYNC, BUSY)
"""Where rates have to hold too: round trips to PostgreSQL, a slow disk, a busy machine."""
TWO_RATES, ROUTE_FACTOR = "two rates", 3
"""A campaign whose route has a rate as well, which is higher."""
_SPIN = "while True: pass"
_FAKETIME = "/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1"
TEMPLATE = """
INSERT INTO templates (name, version, sender, from_field, subject, body, words)
VALUES ('news', 1, 'news@a.example', 'News <news@a.example>', 'News', 'Hello', '{}')
"""
_RECIPIENTS = """
INSERT INTO campaign_recipients (campaign_id, number, recipient, domain)
SELECT %s, n, 'r' || n || '@d' || n %% 50 || '.example', 'd' || n %% 50 || '.example'
FROM generate_series(1, %s) AS n
"""
_CAMPAIGN = "SELECT campaign_create(%s, %s, 'news', sender => %s)"
START = "SELECT campaign_start(%s, %s, %s)"
LOOKS_PER_S = 100
_USING = """
SELECT count(*) FROM (
    SELECT j.campaign_id::text FROM campaign_jobs AS j JOIN campaigns AS c ON c.id = j.campaign_id
    WHERE c.credential = %(credential)s AND j.status IN ('ENQUEUED', 'SENDING', 'SENT')
    UNION SELECT split_part(q.metadata ->> '_campaign', '.', 1) FROM queue AS q
    WHERE q.metadata ->> 'credential' = %(credential)s) AS using_it
"""
_PLAIN = """
SELECT count(submit('x@a.example', ARRAY['r' || n || '@d' || n % 50 || '.example'],
    E'Subject: plain\\r\\n\\r\\nHello\\r\\n'::bytea)) FROM generate_series(1, {}) AS n
"""


@dataclass
class Looks:
    """Numbers of looks: all, with a campaign that uses the credential, and with several."""

    all: int = 0
    one: int = 0
    both: int = 0


@contextmanager
def looking(uri: str, credential: str) -> Iterator[Looks]:
    """Look `LOOKS_PER_S` times per second: which jobs have it, and which mail is in the queue."""
    looks, done = Looks(), threading.Event()

    def look() -> None:
        with psycopg.connect(uri, autocommit=True) as db:
            db.execute("SET search_path = pgmta")
            while not done.wait(1 / LOOKS_PER_S):
                row = db.execute(_USING, {"credential": credential}).fetchone()
                looks.all += 1
                looks.one += row == (1,)
                looks.both += row is not None and row[0] > 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        done.set()
        thread.join()


@dataclass(frozen=True)
class Run:
    """A campaign with a rate, or with `route` plain mail by a route with it."""

    rate: float  # mails per second
    processes: int
    fault: str = ""  # stop, clock, restart, jobs, rivals, TWO_RATES, or one of CONDITIONS
    route: bool = False
    seconds: float = 30.0  # length of an undisturbed stretch

    @property
    def kind(self) -> str:
        """The kind of mail, its rate and the fault."""
        what = "route" if self.route else "campaign"
        rate = f"{self.rate:g}/s" if self.rate >= 1 else f"{self.rate * 60:g}/min"
        return " ".join(filter(None, (what, rate, self.fault)))

    @property
    def name(self) -> str:
        """The same and the processes."""
        return f"{self.kind} x {self.processes}"

    @property
    def window(self) -> float:
        """Seconds of a window in which a rate counts."""
        return 1.0 if self.rate >= 1 else 60.0

    @property
    def broken(self) -> bool:
        """Whether a fault interrupts it."""
        return self.fault in ("stop", "restart")

    def campaigns(self) -> dict[str, float]:
        """Return the sender of each campaign, and the seconds of mail; its domain: a credential."""
        if self.fault == "rivals":
            return {f"first@{USED}": 15, f"second@{USED}": self.seconds, f"third@{OTHER}": 50}
        return {f"first@{OTHER}": self.seconds + 15}


@dataclass(frozen=True)
class Outcome:
    """The most mails in a window at the sink, the share of the rate, and connections.

    `lost` times were reserved, and are not used.
    """

    run: Run
    most: int
    share: float
    sent: int
    connections: int
    lost: int
    looks: Looks | None = None

    @property
    def allowed(self) -> float:
        """The most mails in a window."""
        return self.run.rate * self.run.window

    @property
    def least(self) -> float | None:
        """The least share of the rate; None with a fault that interrupts it."""
        if self.run.broken:
            return None
        if self.run.fault == "rivals":
            return 0.95
        if self.run.fault in ("50 ms", SLOW_SYNC):
            return 0.85
        if self.run.fault == BUSY:
            return 0.7
        return 0.9 if self.run.processes < 8 else 0.8

    def misses(self) -> list[str]:
        """Return the limits that were missed."""
        found = []
        if self.most > self.allowed + 1e-6:
            found.append(f"{self.run.name}: {self.most} in {self.run.window:g} s")
        if self.least and self.share < self.least:
            found.append(f"{self.run.name}: {self.share:.3f} of the rate, limit {self.least}")
        if self.looks and self.looks.both:
            found.append(f"{self.run.name}: both campaigns in {self.looks.both} looks")
        return found


def make_campaign(db: psycopg.Connection[Any], sender: str, recipients: int) -> int:
    """Make a campaign by TEMPLATE, whose credential is the domain of the sender; return its id."""
    name, _, credential = sender.partition("@")
    row = db.execute(_CAMPAIGN, (name, credential, sender)).fetchone()
    assert row is not None
    db.execute(_RECIPIENTS, (row[0], recipients))
    return int(row[0])


def most_in(times: Sequence[float], window: float) -> int:
    """Return the largest number of times in any window, which includes its begin alone."""
    times = sorted(times)
    return max((bisect_left(times, at + window) - n for n, at in enumerate(times)), default=0)


class RatedLine:
    """A database, a sink, and queued processes that each have their own folder."""

    def __init__(self, run: Run, server: Server, directory: Path, commands: Path) -> None:
        self.run, self._directory, self._commands = run, directory, commands
        self._stack = ExitStack()
        self._spaces = self._stack.enter_context(Namespaces())
        self._uri = self._stack.enter_context(fresh(server, keep=False))
        migrate(self._uri)
        parts = conninfo_to_dict(server.uri)
        upstream = [str(parts.get("host") or "127.0.0.1"), str(parts.get("port") or 5432)]
        line = {
            "addresses": list(self._spaces.addresses.values()),
            "namespace": self._spaces.database,
            "upstream": upstream,
            "delay": FAR_TRIPS_S.get(run.fault, NEAR_TRIP_S) / 2,
        }
        self._file = directory / "times.json"
        proxy = self._helper("delay_line", line, ())
        self._ports = dict(zip(PROGRAMS, proxy.wait("ready")["ports"], strict=True))
        words = ["ip", "netns", "exec", self._spaces.database]
        self._sink = self._helper("rate_sink", {"file": str(self._file)}, words)
        self._port = int(self._sink.wait("ready")["port"])
        self.products: list[Product] = []
        self._stack.callback(self.stop)
        for _ in range(BUSY_PROCESSES if run.fault == BUSY else 0):
            busy = subprocess.Popen([sys.executable, "-c", _SPIN])
            self._stack.callback(busy.wait)
            self._stack.callback(busy.kill)

    def _helper(self, module: str, config: dict[str, object], words: Sequence[str]) -> Helper:
        helper = Helper(module, config, self._directory / f"{module}.log", words)
        self._stack.callback(helper.close)
        return helper

    def close(self) -> None:
        """End all."""
        self._stack.close()

    def stop(self) -> None:
        """Stop queued."""
        for product in self.products:
            product.stop()
        self.products.clear()

    def start(self, number: int, clock: int = 0) -> Product:
        """Start one queued, whose clock is `clock` seconds ahead."""
        who = PROGRAMS[number % len(PROGRAMS)]
        folder = self._directory / f"queued{len(list(self._directory.glob('queued*')))}"
        folder.mkdir()
        queued = folder / "queued"
        words = shlex.join([*self._spaces.words(who), str(self._commands / "queued")])
        queued.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        queued.chmod(0o755)
        product = Product(folder, folder, self._uri, [])
        if clock:
            product.environment |= {
                "LD_PRELOAD": _FAKETIME.format(os.uname().machine),
                "FAKETIME": f"{clock:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        route: dict[str, object] = {"name": "all"}
        route["to"] = f"{self._spaces.addresses[who]}:{self._port}"
        if self.run.route or self.run.fault == TWO_RATES:
            rate = self.run.rate * (1 if self.run.route else ROUTE_FACTOR)
            route["rate"] = f"{rate:g}/s" if rate >= 1 else f"{rate * 60:g}/min"
        (folder / "shaping.yaml").write_text(yaml.safe_dump({"routes": [route]}))
        uri = across(self._uri, self._spaces.addresses[who], self._ports[who])
        environment = {"hostname": "a.test", "directory": str(folder), "database": {"uri": uri}}
        more = {"environment": environment, "shaping": "shaping.yaml"}
        product.start_queued(1, self._port, more)
        self.products.append(product)
        return product

    def begin(self) -> None:
        """Put mail for the whole run into the database."""
        run = self.run
        with psycopg.connect(self._uri, autocommit=True) as db:
            db.execute("SET search_path = pgmta")
            if run.route:
                db.execute(_PLAIN.format(round(run.rate * (run.seconds + 15)) + 20).encode())
                db.execute("NOTIFY pgmta_queue")
                return
            db.execute(TEMPLATE)
            for sender, seconds in run.campaigns().items():
                number = make_campaign(db, sender, round(run.rate * seconds) + 20)
                db.execute(START, (number, run.rate, 2 if run.fault == "jobs" else 1))

    def looks(self) -> AbstractContextManager[Looks | None]:
        """Look at the campaigns of a credential, if there are two."""
        return looking(self._uri, USED) if self.run.fault == "rivals" else nullcontext()

    def times(self) -> tuple[dict[str, list[float]], int]:
        """Return when mail of each domain began, and the most connections. Raises HelperError."""
        self._sink.tell("report")
        report = self._sink.wait("report")
        if report["faults"]:
            raise HelperError(str(report["faults"][:3]))
        found = defaultdict[str, list[float]](list)
        for at, sender in json.loads(self._file.read_text()):
            found[sender.partition("@")[2]].append(at)
        return found, int(report["connections"])

    def reserved(self) -> int:
        """Return how many times were reserved for mail."""
        used = "SELECT sum(month_used)::bigint FROM pgmta.budgets WHERE starts_with(key, %s)"
        with psycopg.connect(self._uri, autocommit=True) as db:
            row = db.execute(used, ("route:" if self.run.route else "credential:",)).fetchone()
        assert row is not None
        return int(row[0])

    def wait(self, seconds: float) -> None:
        """Wait, and notice processes that end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for product in self.products:
                product.check()
            time.sleep(min(left, 0.2))


def _stop(line: RatedLine) -> None:
    """Stop one process for a while, and go on."""
    _, process, _ = line.products[0].running[0]
    process.send_signal(signal.SIGSTOP)
    line.wait(STOPPED_S)
    process.send_signal(signal.SIGCONT)


def _restart(line: RatedLine) -> None:
    """End one process after the other, one of them by force, and start others."""
    for place, number in enumerate((signal.SIGTERM, signal.SIGKILL)):
        product = line.products.pop(0)
        product.end(product.running[0][1].pid, number, 30)
        line.start(place)
        line.wait(2)


FAULTS: dict[str, Callable[[RatedLine], None] | None] = {
    "stop": _stop,
    "restart": _restart,
    "clock": None,  # the clocks are wrong from the start
}


def measure(run: Run, server: Server, directory: Path, commands: Path) -> Outcome:
    """Do one run. Raises HelperError, DaemonError, OSError."""
    folder = directory / run.name.replace("/", "-").replace(" ", "-")
    folder.mkdir()
    line = RatedLine(run, server, folder, commands)
    try:
        for number in range(run.processes):
            clock = CLOCK_ERRORS_S[number % len(CLOCK_ERRORS_S)] if run.fault == "clock" else 0
            line.start(number, clock)
        line.begin()
        with line.looks() as looks:
            line.wait(QUIET_S if run.rate >= 1 else 2 / run.rate)
            if fault := FAULTS.get(run.fault):
                fault(line)
                line.wait(QUIET_S if run.rate >= 1 else 10 / run.rate)
            else:
                line.wait(run.seconds - 5)
        times, connections = line.times()
        lost = line.reserved() - sum(map(len, times.values()))
    finally:
        line.close()
    most = max((most_in(each, run.window) for each in times.values()), default=0)
    sent = sum(map(len, times.values()))
    return Outcome(run, most, _share(run, sorted(times[OTHER])), sent, connections, lost, looks)


def _share(run: Run, times: list[float]) -> float:
    """Return the share of the rate that was used in a stretch, or with a fault in all."""
    if len(times) < 2:
        return 0.0
    first = times[0] + (2 if run.rate >= 1 else 0)  # the first connections open
    last = times[-1] if run.broken else min(first + run.seconds, times[-1])
    return sum(first <= at < last for at in times) / (last - first) / run.rate
