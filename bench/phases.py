"""The measured phases: start what belongs to them, send, watch, compare, work out the figures."""

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import cpu
from bench.corpus import Plan
from bench.daemons import DaemonError, Product
from bench.database import Server, Watch, check_durability, fill, fresh, rest
from bench.helper import Helper
from bench.peak import Peak
from bench.place import Place
from bench.progress import Progress

EMPTY_TIMEOUT_S = 10.0
PRODUCT_GROUPS = ("smtpd", "queued", "postgres")


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    messages: int
    sessions: int
    size: int
    recipients: int
    domains: int
    reuse: bool
    processes: int | None
    workers: int
    backlog: int
    rate: float
    stall: float
    keep: bool
    commands: Path
    observe: float = 0.0  # seconds between readings of each process's memory; 0: none
    starttls: bool = False  # whether the sink offers STARTTLS
    secure: bool = False  # the source uses STARTTLS
    refuse: bool = False  # the sink refuses all recipients, and takes DSNs

    def plan(self) -> Plan:
        """Return a plan with a new id."""
        return Plan(secrets.token_hex(4), self.messages, self.size, self.recipients, self.domains)


@dataclass
class Result:
    """The result of one phase: figures by name, problems, and remarks."""

    phase: str
    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)


class Phase(Place):
    """One transfer from the source, to the sink if there is one."""

    def __init__(self, name: str, options: Options, directory: Path) -> None:
        super().__init__(name, options.plan(), directory)
        self.options = options
        self.result = Result(name)
        self.sink: Helper | None = None

    def start_sink(self, traces: int) -> int:
        """Start the sink and return its port."""
        self.sink = self.helper(
            "sink",
            traces=traces,
            starttls=self.options.starttls,
            refuse=self.options.refuse,
        )
        return int(self.sink.wait("ready")["port"])

    def product(self) -> cpu.Groups:
        """Return the groups of processes without those of the bench."""
        return {name: roots for name, roots in self.groups.items() if name in PRODUCT_GROUPS}

    def transfer(
        self,
        port: int,
        check: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        """Send everything to the port, and fill in the result."""
        options = self.options
        source = self.helper(
            "source",
            port=port,
            sessions=options.sessions,
            reuse=options.reuse,
            rate=options.rate,
            tls=options.secure,
        )
        source.wait("ready")
        cpu.settle(self.groups)
        before = cpu.snapshot(self.groups)
        source.tell("go")
        try:
            sent = self._watch(source, check)
        except DaemonError as error:
            self.result.problems.append(str(error))
            sent = None
        if sent is None:
            source.tell("report")
            sent = source.wait("result")
        got = self._report()
        after()
        used = cpu.snapshot(self.groups)
        for name, size in cpu.memory(self.groups).items():
            self.result.figures[f"memory MB {name}"] = size
        if self.sink:
            got = self._report()
        self._rates(sent, got)
        self._cpu(before, used, max(1, sent["accepted"]))
        self._compare(sent, got)

    def _report(self) -> dict[str, Any]:
        if self.sink is None:
            return {}
        self.sink.tell("report")
        return self.sink.wait("report")

    def _watch(self, source: Helper, check: Callable[[], None]) -> dict[str, Any] | None:
        """Wait for the end; give the source's result unless everything stands still."""
        plan = self.plan
        progress = Progress(self.result.phase, plan.messages * (plan.recipients, 1)[not self.sink])
        moved, before = time.monotonic(), (0, 0)
        sent: dict[str, Any] | None = None
        while True:
            if sent is None:
                sent = source.poll("result", 0.1)
            else:
                time.sleep(0.05)
            accepted = int(sent["accepted"] if sent else source.latest.get("accepted", 0))
            arrived = int(self.sink.latest.get("distinct", 0)) if self.sink else accepted
            progress.show(arrived)
            if sent and arrived >= accepted * (plan.recipients if self.sink else 1):
                break
            if (accepted, arrived) != before:
                moved, before = time.monotonic(), (accepted, arrived)
            elif time.monotonic() - moved > self.options.stall:
                self.result.problems.append(f"nothing moved for {self.options.stall:g} s, gave up")
                break
            check()
        progress.end()
        return sent

    def _rates(self, sent: dict[str, Any], got: dict[str, Any]) -> None:
        figures, plan = self.result.figures, self.plan
        seconds = (got["last"] if self.sink else sent["last"]) - sent["first"]
        if seconds <= 0:
            return
        done = got["distinct"] / plan.recipients if self.sink else sent["accepted"]
        figures["messages/s"] = done / seconds
        if plan.recipients > 1:
            figures["recipients/s"] = done * plan.recipients / seconds
        figures["seconds"] = seconds
        if self.sink:
            figures["taken in, messages/s"] = sent["accepted"] / (sent["last"] - sent["first"])
        figures["accept ms p50"] = sent["p50"] * 1000
        figures["accept ms p99"] = sent["p99"] * 1000
        if self.sink:
            for what, start in (("delivery", "sent"), ("acknowledged to next hop", "taken")):
                pairs = zip(self.times(start), self.times("arrived"), strict=True)
                delays = sorted(end - begin for begin, end in pairs if begin and end)
                if delays:
                    figures[f"{what} ms p50"] = delays[len(delays) // 2] * 1000
                    figures[f"{what} ms p99"] = delays[int(len(delays) * 0.99)] * 1000
            figures["sink connections"] = got["connections"]
            figures["sink connections at once"] = got["peak"]
            figures["recipients/transaction"] = got["received"] / max(1, got["transactions"])

    def _cpu(self, before: cpu.Snapshot, used: cpu.Snapshot, messages: int) -> None:
        figures = self.result.figures
        for name, seconds in used.groups.items():
            spent = seconds - before.groups.get(name, 0.0)
            figures[f"CPU ms/message {name}"] = spent * 1000 / messages
        figures["cores busy"] = (used.machine - before.machine) / (used.at - before.at)

    def _compare(self, sent: dict[str, Any], got: dict[str, Any]) -> None:
        problems, notes, plan = self.result.problems, self.result.notes, self.plan
        missing = plan.messages - sent["accepted"] - sent["unsent"]
        if missing:
            problems.append(f"{missing} messages not accepted by the server: {sent['samples']}")
        elif sent["samples"]:
            notes.append(f"{sent['retries']} messages sent again: {sent['samples']}")
        if not self.sink:
            return
        for kind, number in got["wrong"].items():
            examples = [text for text in got["samples"] if text.startswith(kind)]
            problems.append(f"{number} times {kind}: {examples}")
        seen = (self.directory / "seen").read_bytes()
        accepted = self.times("sent")
        lost = [at for at, n in enumerate(seen) if not n and accepted[at // plan.recipients]]
        twice = [at for at, n in enumerate(seen) if n > 1]
        extra = [at for at, n in enumerate(seen) if n and not accepted[at // plan.recipients]]
        # mail that came although a connection broke before its 250 is allowed, and not counted
        for word, places, where in (
            ("lost", lost, problems),
            ("duplicated", twice, problems),
            ("not accepted but delivered", extra, notes),
        ):
            if places:
                some = [f"{at // plan.recipients}/{at % plan.recipients}" for at in places[:8]]
                where.append(f"{len(places)} recipients {word}, message/recipient: {some}")


def selftest(options: Options, directory: Path) -> Result:
    """Send from source straight into sink."""
    phase = Phase("selftest", options, directory)
    with phase.stack:
        phase.transfer(phase.start_sink(traces=0), lambda: None, lambda: None)
    return phase.result


def measure(name: str, options: Options, directory: Path, server: Server) -> Result:
    """Run the phase "ingest" or "relay" on a fresh database."""
    phase = Phase(name, options, directory)
    result, plan = phase.result, phase.plan
    with fresh(server, options.keep) as uri:
        check_durability(uri)
        product = Product(options.commands, phase.directory, uri, result.notes)
        product.migrate()
        if options.backlog:
            began = time.monotonic()
            fill(uri, options.backlog)
            result.figures["fill seconds"] = time.monotonic() - began
            rest(uri)
        watch = Watch(uri)
        with contextlib.closing(watch), phase.stack:
            phase.stack.callback(product.stop)
            phase.groups["postgres"] = [server.postmaster] if server.postmaster else []
            if name == "relay":
                next_hop = phase.start_sink(traces=1)
                phase.groups["queued"] = product.start_queued(options.workers, next_hop)
            pid, port = product.start_smtpd(options.processes)
            phase.groups["smtpd"] = [pid]

            def after() -> None:
                if name == "relay":
                    watch.wait_empty(EMPTY_TIMEOUT_S)

            peak = Peak(phase.product(), options.observe) if options.observe else None
            if peak:
                peak.start()
            phase.transfer(port, product.check, after)
            if peak:
                peak.end()
                result.processes = peak.processes()
                result.figures |= peak.figures()
            wanted = (plan.messages, plan.messages * plan.recipients)
            if name == "relay":
                wanted = (0, 0)
            counts = watch.counts()
            if counts != wanted:
                result.problems.append(f"rows in messages, queue: {counts}, wanted {wanted}")
            product.stop()
            for figure, value in watch.spent().items():
                result.figures[f"{figure}/message"] = value / plan.messages
    return result
