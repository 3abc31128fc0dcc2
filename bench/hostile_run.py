"""One attack beside normal mail: windows before, beside and after it, and what they show."""

import secrets
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from bench import cpu
from bench.certificate import make_certificate
from bench.corpus import Plan
from bench.daemons import HOST, DaemonError, Product, merged
from bench.database import Server, check_durability, fresh, insert
from bench.helper import HelperError
from bench.hostile_crowds import CROWDS, LISTENER, PASSWORD, SETTINGS, USERS
from bench.hostile_hops import DOMAIN, HOPS, SILENT
from bench.peak import Peak
from bench.place import Place
from bench.progress import log
from bench.source import percentile
from bench.windows import Window, compare

PROBES = 20_000  # numbers kept for probe mails
WARM, LOOK = 2.0, 0.25  # seconds: of mail before the first window; between looks
HOP_MAILS = 50  # mails for the hostile hop at each look
QUICK = 0.1  # seconds: the attack is over for others when probes take less
ELSEWHERE = 0.4  # cores that others may use before the figures get a remark
BUILT = 120.0  # seconds until a crowd is there
STALL = 15.0  # seconds without an arrival after which the rest counts as lost


@dataclass(frozen=True)
class Settings:
    """The options of the command."""

    clients: int
    seconds: float
    source: str
    mbit: float
    sessions: int
    size: int
    rate: float
    messages: int
    processes: int | None
    patience: float
    commands: Path
    smtpd: dict[str, Any]


@dataclass
class Outcome:
    """The effect of one attack on others, by figure, and the problems."""

    attack: str
    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Run(Place):
    """The product with a sink, normal mail and probes, and one attack."""

    def __init__(self, attack: str, settings: Settings, directory: Path, server: Server) -> None:
        plan = Plan(secrets.token_hex(4), settings.messages, settings.size, 1, 1)
        super().__init__(attack, plan, directory)
        self.settings, self.server = settings, server
        self.outcome = Outcome(attack)
        self.hop = attack in HOPS
        self.crowd = attack in CROWDS
        self.whole = replace(plan, messages=settings.messages + PROBES)
        self.groups["postgres"] = [server.postmaster] if server.postmaster else []
        self.mails = 0  # for the hostile hop
        self.domains = [DOMAIN]  # of these mails
        self.usual = 0.0  # arrivals per second before the attack

    def go(self) -> Outcome:
        """Run the attack on a fresh database; it takes some multiple of the seconds.

        A failure to run is a problem of the outcome.
        """
        seconds = self.settings.seconds
        log(f"{self.outcome.attack}: {seconds:g} s without, with and again without it")
        with fresh(self.server, False) as uri:
            check_durability(uri)
            product = Product(self.settings.commands, self.directory, uri, self.outcome.notes)
            product.migrate()
            with psycopg.connect(uri, autocommit=True) as self.database, self.stack:
                self.stack.callback(product.stop)
                try:
                    self._measure(product)
                except (DaemonError, HelperError) as error:
                    self.outcome.problems.append(str(error))
        return self.outcome

    def _start(self, product: Product) -> None:
        settings = self.settings
        attack: dict[str, Any] = {"attack": self.outcome.attack}
        self.sink = self.helper("sink", plan=self.whole, traces=1)
        next_hop = int(self.sink.wait("ready")["port"])
        queued: dict[str, Any] = {"process": {"drain": "3s"}, "retry": {"intervals": ["1s"]}}
        if self.hop:
            queued |= self._start_hop(attack)
        self.groups["queued"] = product.start_queued(1, next_hop, queued)
        pid, port = self._start_smtpd(product)
        self.groups["smtpd"], self.port = [pid], port
        attack |= {} if self.hop else {"clients": settings.clients, "port": port}
        if self.crowd:
            self.attackers = self.helper("hostile_crowds", group="attackers", **attack)
            self.attackers.wait("ready")
        elif not self.hop:
            attack |= {"source": settings.source, "mbit": settings.mbit}
            self.attackers = self.helper("hostile_clients", group="attackers", **attack)
            self.attackers.wait("ready")
        first = settings.messages
        self.prober = self.helper(
            "hostile_probe", group="prober", plan=self.whole, port=port, first=first
        )
        self.prober.wait("ready")
        self.source = self.helper(
            "source", port=port, sessions=settings.sessions, reuse=True, rate=settings.rate
        )
        self.source.wait("ready")

    def _start_hop(self, attack: dict[str, Any]) -> dict[str, Any]:
        """Start the hop, and return the settings of queued that lead mail there."""
        self.attackers = self.helper("hostile_hops", group="attackers", **attack)
        ports = self.attackers.wait("ready")
        routes = {DOMAIN: f"{HOST}:{ports['port']}"}
        if self.outcome.attack != "hop-dns":
            return {"routes": routes}
        self.domains = SILENT
        servers = [f"{HOST}:{ports['names']}"]
        return {
            "routes": routes | {f"*.{DOMAIN}": "mx"},
            "delivery": {"dns": {"servers": servers}},
        }

    def _start_smtpd(self, product: Product) -> tuple[int, int]:
        settings = self.settings
        listener: dict[str, Any] = {"early": "allow"}  # or most attacks end at once
        smtpd = settings.smtpd
        if self.crowd:
            certificate, key = make_certificate(self.directory, "smtpd")
            files = {"certificates": [{"certificate": str(certificate), "key": str(key)}]}
            smtpd, listener = merged(merged(SETTINGS, files), smtpd), listener | LISTENER
        if self.outcome.attack == "passwords":
            for user in USERS:
                product.add_user(user, PASSWORD)
        return product.start_smtpd(settings.processes, smtpd, listener)

    def _measure(self, product: Product) -> None:
        self._start(product)
        cpu.settle(self.groups)
        self.source.tell("go")
        self.prober.tell("go")
        time.sleep(WARM)
        begun = self._arrived()
        windows = [self._window(product, "before")]
        self.usual = (self._arrived() - begun) / self.settings.seconds
        self._begin()
        if self.crowd:
            self.attackers.wait("built", BUILT)
        windows.append(self._window(product, "beside", self.outcome.attack))
        self.attackers.tell("stop")
        self._recover(product, windows[1].end)
        windows.append(self._window(product, "after"))
        self.source.tell("stop")
        self.prober.tell("stop")
        report = self.prober.wait("report", 30)
        sent = self.source.poll("result", self.settings.patience)
        if sent is None:
            self.source.tell("report")
            sent = self.source.wait("result")
        if not self.hop:
            self.outcome.figures |= {
                f"attackers {name}": value
                for name, value in self.attackers.wait("stopped").items()
                if name != "is"
            }
        accepted = self.times("sent")
        good = {number for number, _, _, well in report["probes"] if well}
        self._drain(int(sent["accepted"]) + len(good))
        arrived = self.times("arrived")
        self._rates(windows, accepted if not self.hop else arrived[: self.plan.messages])
        self._latencies(windows, report, arrived)
        self._compare(accepted, good, sent)
        if report["reasons"]:
            self.outcome.notes.append(f"probes failed: {report['reasons'][:3]}")
        if self.hop:
            self._hop(product)

    def _begin(self) -> None:
        """Let the attack begin."""
        self.attackers.tell("go")

    def _window(self, product: Product, name: str, attack: str | None = None) -> Window:
        figures = self.outcome.figures
        product_ = {key: self.groups[key] for key in ("smtpd", "queued")}
        peak = Peak(product_, LOOK)
        peak.start()
        used, start = cpu.snapshot(self.groups), time.monotonic()
        while (left := start + self._length(attack) - time.monotonic()) > 0:
            if attack and self.hop:
                self._feed()
            time.sleep(min(left, LOOK))
            product.check()
        window = Window(start, time.monotonic(), attack)
        now = cpu.snapshot(self.groups)
        peak.end()
        figures |= {f"{name} {key}": value for key, value in peak.figures().items()}
        for group, seconds in now.groups.items():
            figures[f"{name} CPU {group}"] = seconds - used.groups[group]
        ours = sum(now.groups.values()) - sum(used.groups.values())
        foreign = (now.machine - used.machine - ours) / (now.at - used.at)
        figures[f"{name} cores elsewhere"] = foreign
        if foreign > ELSEWHERE and self.groups["postgres"]:
            self.outcome.notes.append(f"{name}: {foreign:.1f} cores busy with something else")
        return window

    def _length(self, attack: str | None) -> float:
        """Return the seconds of a window, with the attack or without one."""
        return self.settings.seconds

    def _feed(self) -> None:
        turn = self.domains[self.mails // HOP_MAILS % len(self.domains)]
        insert(self.database, self.mails + 1, self.mails + HOP_MAILS, turn)
        self.mails += HOP_MAILS

    def _arrived(self) -> int:
        return int(self.sink.latest.get("distinct", 0))

    def _recover(self, product: Product, since: float) -> None:
        """Wait until others have quick probes and half of their rate; at most the patience."""
        wanted = max(1.0, self.usual * LOOK)
        arrived = self._arrived()
        while (now := time.monotonic()) - since < self.settings.patience:
            report, before, arrived = self.prober.latest, arrived, self._arrived()
            quick = report.get("slow", 0.0) < QUICK and now - report.get("last", 0.0) < 1
            if quick and arrived - before >= wanted:
                self.outcome.figures["recovery s"] = now - since
                break
            time.sleep(LOOK * 2)
            product.check()
        else:
            self.outcome.notes.append(f"others not served {self.settings.patience:g} s after it")
        time.sleep(1)

    def _drain(self, expected: int) -> None:
        """Wait until all that was accepted has arrived, or nothing has for long."""
        moved, before = time.monotonic(), -1
        while before < expected and time.monotonic() - moved < STALL:
            if (arrived := self._arrived()) != before:
                moved, before = time.monotonic(), arrived
            time.sleep(0.1)
        time.sleep(0.3)  # for doubles
        self.sink.tell("report")
        for kind, number in self.sink.wait("report")["wrong"].items():
            self.outcome.problems.append(f"{number} times {kind}")

    def _rates(self, windows: list[Window], times: array[float]) -> None:
        compared = compare(windows, times)[0]
        rates = {"before": compared.before, "beside": compared.during, "after": compared.after}
        figures = {f"{name} mails/s": rate for name, rate in rates.items()}
        self.outcome.figures |= figures | {"ratio": compared.ratio}

    def _latencies(
        self, windows: list[Window], report: dict[str, Any], arrived: array[float]
    ) -> None:
        figures = self.outcome.figures
        for name, window in zip(("before", "beside"), windows, strict=False):
            probes = [p for p in report["probes"] if window.start <= p[1] < window.end]
            visits = [v for v in report["visits"] if window.start <= v[0] < window.end]
            accept = sorted(seconds for _, _, seconds, _ in probes)
            there = sorted(arrived[n] - due for n, due, _, _ in probes if arrived[n])
            greet = sorted(seconds for _, seconds, _ in visits)
            for what, values in (("accept", accept), ("delivery", there), ("greeting", greet)):
                figures |= {
                    f"{name} {what} ms p50": percentile(values, 0.50) * 1000,
                    f"{name} {what} ms p99": percentile(values, 0.99) * 1000,
                    f"{name} {what} ms max": percentile(values, 1.0) * 1000,
                }
            figures[f"{name} probes failed"] = sum(not well for *_, well in probes)
            figures[f"{name} visits refused"] = sum(not well for *_, well in visits)
            figures[f"{name} visits"] = len(visits)

    def _compare(self, accepted: array[float], good: set[int], sent: dict[str, Any]) -> None:
        seen = (self.directory / "seen").read_bytes()
        taken = [bool(at) for at in accepted]
        taken += [number in good for number in range(self.plan.messages, self.whole.messages)]
        lost = sum(well and not n for well, n in zip(taken, seen, strict=True))
        twice = sum(n > 1 for n in seen)
        extra = sum(bool(n) and not well for well, n in zip(taken, seen, strict=True))
        if lost or twice:
            self.outcome.problems.append(f"{lost} accepted mails lost, {twice} delivered twice")
        if extra:
            self.outcome.notes.append(f"{extra} delivered without a 250: their session broke")
        if sent["samples"]:
            text = f"source: {sent['refused']} refused, {sent['retries']} again, {sent['samples']}"
            self.outcome.notes.append(text[:300])

    def _hop(self, product: Product) -> None:
        """Check that no mail for the hop left the queue before the hop got it up to the dot."""
        self.attackers.tell("report")
        report = self.attackers.wait("report")
        full = Counter(report["full"])
        query = "SELECT split_part(recipient, '@', 1) FROM queue WHERE domain = ANY(%s)"
        left = {row[0] for row in self.database.execute(query, [self.domains])}
        every = {str(10**12 + number) for number in range(1, self.mails + 1)}
        lost = every - left - full.keys()
        figures = {"mails": len(every), "settled": len(every - left), "lost": len(lost)}
        figures |= {"got": len(full), "got twice": sum(n > 1 for n in full.values())}
        figures["connections"] = report["connections"]
        self.outcome.figures |= {f"hop {name}": value for name, value in figures.items()}
        if figures["got twice"]:
            self.outcome.notes.append(f"{figures['got twice']} came to the hop more than once")
        if lost:
            self.outcome.problems.append(f"{len(lost)} of {len(every)} lost at the hop")
