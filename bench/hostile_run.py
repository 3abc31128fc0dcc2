"""One attack beside normal mail: windows before, beside and after it, and what they show."""

import secrets
import time
from array import array
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from bench import cpu
from bench.certificate import make_certificate
from bench.corpus import Plan
from bench.daemons import HOST, DaemonError, Product
from bench.database import Server, check_durability, fresh, insert
from bench.helper import HelperError
from bench.hostile_hops import DOMAIN, HOPS
from bench.peak import Peak
from bench.phases import Result
from bench.place import Place
from bench.progress import log
from bench.source import percentile

PROBES, PROBE_RATE, PROBE_SESSIONS = 20_000, 40.0, 4
PROBE_ADDRESS = "127.0.2.1"
WARM_UP_S, LOOK_INTERVAL_S = 2.0, 0.25  # mail before the first window; between looks
HOP_MAILS_PER_LOOK = 50  # for the hostile hop
QUICK_PROBE_S = 0.1  # the attack is over for others when probes take less
BUILD_TIMEOUT_S = 120.0  # for a crowd of connections
STALL_S = 15.0  # without an arrival; then the rest counts as lost
SMTPD: dict[str, Any] = {
    "relay": {"networks": ["127.0.0.1/32"], "domains": ["*.bench.test"]},
    "limits": {"connections": 6000, "exempt": ["127.0.0.1/32", f"{PROBE_ADDRESS}/32"]},
}


@dataclass(frozen=True)
class Settings:
    """The options of the command."""

    clients: int
    seconds: float
    sessions: int
    size: int
    rate: float
    messages: int
    processes: int | None
    patience: float
    commands: Path


@dataclass(frozen=True)
class Window:
    """A span of time by the monotonic clock."""

    name: str
    start: float
    end: float

    def count(self, times: array[float]) -> int:
        """Return how many of the times lie in it."""
        return sum(self.start <= each < self.end for each in times)


class Run(Place):
    """The product with a sink, normal mail and probes, and one attack."""

    def __init__(self, attack: str, settings: Settings, directory: Path, server: Server) -> None:
        plan = Plan(secrets.token_hex(4), settings.messages, settings.size, 1, 1)
        super().__init__(attack, plan, directory)
        self.settings, self.server = settings, server
        self.outcome = Result(attack)
        self.hop = attack in HOPS
        self.whole = replace(plan, messages=settings.messages + PROBES)
        self.groups["postgres"] = [server.postmaster] if server.postmaster else []
        self.mails = 0  # number of mails for the hostile hop so far

    def go(self) -> Result:
        """Run the attack on a fresh database. A failure to run is a problem of the outcome."""
        seconds = self.settings.seconds
        log(f"{self.outcome.phase}: {seconds:g} s without, with and again without it")
        with fresh(self.server, False) as uri:
            check_durability(uri)
            product = Product(self.settings.commands, self.directory, uri, self.outcome.notes)
            product.migrate()
            with psycopg.connect(uri, autocommit=True) as self.database, self.stack:
                self.stack.callback(product.stop)
                try:
                    self._start(product)
                    self._measure(product)
                except (DaemonError, HelperError) as error:
                    self.outcome.problems.append(str(error))
        return self.outcome

    def _start(self, product: Product) -> None:
        settings = self.settings
        self.sink = self.helper("sink", plan=self.whole, traces=1)
        next_hop = int(self.sink.wait("ready")["port"])
        queued: dict[str, Any] = {"process": {"drain": "3s"}, "retry": {"intervals": ["1s"]}}
        if self.hop:
            queued |= self._start_hop()
        self.groups["queued"] = product.start_queued(1, next_hop, queued)
        certificate, key = make_certificate(self.directory, "smtpd")
        files = {"certificates": [{"certificate": str(certificate), "key": str(key)}]}
        smtpd = SMTPD | files
        listener = {"early": "allow"}  # otherwise most attacks would end at once
        pid, port = product.start_smtpd(settings.processes, smtpd, listener)
        self.groups["smtpd"] = [pid]
        if not self.hop:
            self.attackers = self.helper(
                "hostile_clients",
                group="attackers",
                attack=self.outcome.phase,
                clients=settings.clients,
                port=port,
            )
            self.attackers.wait("ready")
        self.prober = self.helper(
            "source",
            group="prober",
            plan=self.whole,
            prefix="probe.",
            base=settings.messages,
            address=PROBE_ADDRESS,
            port=port,
            sessions=PROBE_SESSIONS,
            reuse=False,
            rate=PROBE_RATE,
        )
        self.prober.wait("ready")
        self.source = self.helper(
            "source", port=port, sessions=settings.sessions, reuse=True, rate=settings.rate
        )
        self.source.wait("ready")

    def _start_hop(self) -> dict[str, Any]:
        """Start the hop, and return the settings of queued that lead mail there."""
        attack = self.outcome.phase
        self.attackers = self.helper("hostile_hops", group="attackers", attack=attack)
        return {"routes": {DOMAIN: f"{HOST}:{self.attackers.wait('ready')['port']}"}}

    def _measure(self, product: Product) -> None:
        cpu.settle(self.groups)
        self.source.tell("go")
        self.prober.tell("go")
        time.sleep(WARM_UP_S)
        windows = [self._window(product, "before")]
        self.attackers.tell("go")
        if not self.hop:
            self.attackers.wait("built", BUILD_TIMEOUT_S)
        windows.append(self._window(product, "beside"))
        self.attackers.tell("stop")
        self._recover(product, windows[1].end)
        windows.append(self._window(product, "after"))
        self.source.tell("stop")
        self.prober.tell("stop")
        sent, probed = self._result(self.source), self._result(self.prober)
        if not self.hop:
            stopped = self.attackers.wait("stopped").items()
            found = {f"attackers {name}": value for name, value in stopped if name != "is"}
            self.outcome.figures |= found
        self._drain(int(sent["accepted"]) + int(probed["accepted"]))
        self._rates(windows)
        self._latencies(windows)
        self.outcome.figures["probes failed"] = probed["refused"] + probed["retries"]
        self._compare()
        for name, result in (("source", sent), ("probes", probed)):
            if result["samples"]:
                text = f"{name}: {result['refused']} refused, {result['retries']} again, "
                self.outcome.notes.append(f"{text}{result['samples']}"[:300])
        if self.hop:
            self._check_hop()

    def _result(self, source: Any) -> dict[str, Any]:
        sent = source.poll("result", self.settings.patience)
        if sent is None:
            source.tell("report")
            sent = source.wait("result")
        return dict(sent)

    def _window(self, product: Product, name: str) -> Window:
        figures = self.outcome.figures
        peak = Peak({key: self.groups[key] for key in ("smtpd", "queued")}, LOOK_INTERVAL_S)
        peak.start()
        used, start = cpu.snapshot(self.groups), time.monotonic()
        while (left := start + self.settings.seconds - time.monotonic()) > 0:
            if name == "beside" and self.hop:
                self._feed()
            time.sleep(min(left, LOOK_INTERVAL_S))
            product.check()
        window = Window(name, start, time.monotonic())
        now = cpu.snapshot(self.groups)
        peak.end()
        figures |= {f"{name} {key}": value for key, value in peak.figures().items()}
        for group, seconds in now.groups.items():
            figures[f"{name} CPU {group}"] = seconds - used.groups[group]
        return window

    def _feed(self) -> None:
        insert(self.database, self.mails + 1, self.mails + HOP_MAILS_PER_LOOK, DOMAIN)
        self.mails += HOP_MAILS_PER_LOOK

    def _arrived(self) -> int:
        return int(self.sink.latest.get("distinct", 0))

    def _recover(self, product: Product, since: float) -> None:
        """Wait until a probe that begins after the attack is quick; at most the patience."""
        while (now := time.monotonic()) - since < self.settings.patience:
            time.sleep(LOOK_INTERVAL_S)
            product.check()
            seen = self.prober.latest
            if float(seen.get("last", 0.0)) > now and float(seen["slow"]) < QUICK_PROBE_S:
                self.outcome.figures["recovery s"] = now - since
                return
        self.outcome.notes.append(f"not as usual {self.settings.patience:g} s after the attack")

    def _drain(self, wanted: int) -> None:
        """Wait for the accepted mail, as long as some of it comes."""
        before, moved = -1, time.monotonic()
        while (arrived := self._arrived()) < wanted and time.monotonic() - moved < STALL_S:
            if arrived != before:
                before, moved = arrived, time.monotonic()
            time.sleep(0.1)
        time.sleep(0.3)  # in which duplicates would come
        self.sink.tell("report")
        for kind, number in self.sink.wait("report")["wrong"].items():
            self.outcome.problems.append(f"{number} times {kind}")

    def _rates(self, windows: list[Window]) -> None:
        """Compare the rate beside the attack with the mean of the windows around it."""
        times = self.times("arrived")[: self.plan.messages] if self.hop else self.times("taken")
        rates = [window.count(times) / (window.end - window.start) for window in windows]
        figures = self.outcome.figures
        for window, rate in zip(windows, rates, strict=True):
            figures[f"{window.name} mails/s"] = rate
        usual = (rates[0] + rates[2]) / 2
        figures["ratio"] = rates[1] / usual if usual else 0.0

    def _latencies(self, windows: list[Window]) -> None:
        """Work out the times of probes, from when each was due."""
        due, taken = self.times("probe.sent"), self.times("probe.taken")
        arrived = self.times("arrived")
        for window in windows:
            inside = [n for n, at in enumerate(due) if at and window.start <= at < window.end]
            for what, ends in (("accept", taken), ("delivery", arrived)):
                values = sorted(ends[n] - due[n] for n in inside if ends[n])
                for name, part in (("p50", 0.50), ("p99", 0.99), ("max", 1.0)):
                    value = percentile(values, part) * 1000
                    self.outcome.figures[f"{window.name} {what} ms {name}"] = value

    def _compare(self) -> None:
        seen = (self.directory / "seen").read_bytes()
        taken = self.times("probe.sent")
        taken[: self.plan.messages] = self.times("sent")
        lost = sum(bool(at) and not n for at, n in zip(taken, seen, strict=True))
        twice = sum(n > 1 for n in seen)
        extra = sum(bool(n) and not at for at, n in zip(taken, seen, strict=True))
        if lost or twice:
            self.outcome.problems.append(f"{lost} accepted mails lost, {twice} delivered twice")
        if extra:
            self.outcome.notes.append(f"{extra} delivered without a 250: their session broke")

    def _check_hop(self) -> None:
        """Check that no mail for the hop left the queue before the hop got it up to the dot."""
        self.attackers.tell("report")
        full = Counter(self.attackers.wait("report")["full"])
        query = "SELECT split_part(recipient, '@', 1) FROM queue WHERE domain = %s"
        left = {row[0] for row in self.database.execute(query, [DOMAIN])}
        every = {str(10**12 + number) for number in range(1, self.mails + 1)}
        twice = sum(n > 1 for n in full.values())
        if twice:
            self.outcome.notes.append(f"{twice} came to the hop more than once")
        if lost := every - left - full.keys():
            self.outcome.problems.append(f"{len(lost)} of {len(every)} lost at the hop")
