"""Mail from Postfix's smtp-source, through a server, to its smtp-sink: both count only."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import cpu
from bench.daemons import HOST, DaemonError, free_port
from bench.peer.postfix import Postfix
from bench.peer.system import Daemon
from bench.phases import Options, Phase
from bench.progress import Progress

LOOK_INTERVAL_S = 0.01
_NUMBER = re.compile(rb"(?:mesg=)?(\d+)\r")


@dataclass
class Counter:
    """The running count that a tool writes into its log with option -c."""

    path: Path
    count: int = 0
    last: float = 0.0  # time when the file grew last, by the clock of files

    def look(self) -> int:
        """Read the count."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 100))
            found = _NUMBER.findall(file.read())
        if found and int(found[-1]) != self.count:
            self.count = int(found[-1])
            self.last = self.path.stat().st_mtime
        return self.count


class CountedPhase(Phase):
    """One transfer by the tools of Postfix; with one recipient the sink's count must be exact."""

    def __init__(self, name: str, options: Options, directory: Path, postfix: Postfix) -> None:
        super().__init__(name, options, directory)
        self.postfix = postfix
        self.counter: Counter | None = None

    def _tool(self, name: str, words: list[str]) -> Daemon:
        """Start a tool, which ends with the phase."""
        command: list[str | Path] = [self.postfix.tool(name), "-c", *words]
        log = self.directory / f"{name}.log"
        daemon = Daemon(name, command, log, self.postfix.environment)
        self.stack.callback(daemon.stop)
        return daemon

    def start_sink(self, traces: int) -> int:
        """Start smtp-sink and return its port."""
        port = free_port()
        sink = self._tool("smtp-sink", ["-u", "nobody", "-m", "1000", f"inet:{HOST}:{port}", "999"])
        sink.wait_greeting(port)
        self.groups["sink"] = [sink.process.pid]
        self.counter = Counter(sink.log)
        return port

    def transfer(self, port: int, check: Callable[[], None], after: Callable[[], None]) -> None:
        """Send everything to the port, and fill in the result."""
        options, plan, figures = self.options, self.plan, self.result.figures
        words = [
            *(["-d"] if options.reuse else []),
            *("-s", f"{options.sessions}", "-m", f"{plan.messages}", "-l", f"{plan.size}"),
            *("-r", f"{plan.recipients}", "-N", "-M", "source.bench.test"),
            *("-f", "source@from.bench.test", "-t", "to@to.bench.test"),
        ]
        cpu.settle(self.groups)
        before, began = cpu.snapshot(self.groups), time.time()
        source = self._tool("smtp-source", [*words, f"inet:{HOST}:{port}"])
        counter = self.counter or Counter(source.log)
        try:
            self._wait(source, counter, check)
        except DaemonError as error:
            self.result.problems.append(str(error))
        after()
        used = cpu.snapshot(self.groups)
        for name, size in cpu.memory(self.groups).items():
            figures[f"memory MB {name}"] = size
        self._cpu(before, used, plan.messages)
        most = plan.messages * (plan.recipients if self.counter else 1)
        if not plan.messages <= counter.look() <= most:
            self.result.problems.append(f"{counter.count} messages, wanted {plan.messages}")
        elif counter.last > began:
            figures["seconds"] = counter.last - began
            figures["messages/s"] = plan.messages / figures["seconds"]
            if self.counter:
                figures["recipients/transaction"] = plan.messages * plan.recipients / counter.count

    def _wait(self, source: Daemon, counter: Counter, check: Callable[[], None]) -> None:
        """Wait until the source has ended and all is counted, or nothing moves."""
        wanted = self.plan.messages
        progress = Progress(self.result.phase, wanted)
        moved, before = time.monotonic(), 0
        while source.process.poll() is None or counter.look() < wanted:
            if source.process.returncode:
                source.check()
            if counter.look() != before:
                moved, before = time.monotonic(), counter.count
            elif time.monotonic() - moved > self.options.stall:
                self.result.problems.append(f"nothing moved for {self.options.stall:g} s, gave up")
                break
            progress.show(before)
            check()
            time.sleep(LOOK_INTERVAL_S)
        progress.end()
