"""Postfix's smtp-source and smtp-sink as source and sink: they count, and compare nothing."""

import contextlib
import pwd
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench import cpu
from bench.daemons import HOST, DaemonError, free_port, greets
from bench.helper import Helper
from bench.peer.postfix import Postfix
from bench.peer.round import Load
from bench.phases import Options

NO_RIGHTS = pwd.getpwuid(65534).pw_name  # the user that owns no files
COUNTED = re.compile(rb"mesg=(\d+)")


class Counter:
    """smtp-sink, with the count it shows and when it last changed."""

    def __init__(self, tools: Postfix, log: Path) -> None:
        self.port = free_port()
        self.count = 0
        self.last = 0.0
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [tools.tool("smtp-sink"), "-c", "-u", NO_RIGHTS, f"{HOST}:{self.port}", "1024"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                env=tools.environment,
                cwd="/",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        end = time.monotonic() + 10
        while not greets(self.port):
            if time.monotonic() > end:
                raise DaemonError(f"smtp-sink does not greet: {log.read_text()[-300:]}")
            time.sleep(0.05)

    def _read(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while data := self.process.stdout.read1(65536):  # type: ignore[attr-defined]
            *lines, rest = (rest + data).split(b"\r")
            for line in lines:
                match = COUNTED.search(line)
                if match and int(match[1]) != self.count:
                    self.count, self.last = int(match[1]), time.monotonic()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._reader.join(3)
        if self.process.stdout is not None:
            self.process.stdout.close()


class ToolLoad(Load):
    """A load by Postfix's tools: rates and what the server uses, but no delays and no proof."""

    def __init__(self, name: str, options: Options, directory: Path, tools: Postfix) -> None:
        super().__init__(name, options, directory)
        self.tools = tools
        self.counter: Counter | None = None

    def start_sink(self, traces: int) -> int:
        """Start smtp-sink and return its port."""
        self.counter = Counter(self.tools, self.directory / "smtp-sink.log")
        self.stack.callback(self.counter.close)
        self.groups["sink"] = [self.counter.process.pid]
        return self.counter.port

    def _command(self, port: int) -> list[str]:
        options = self.options
        command = [str(self.tools.tool("smtp-source")), "-s", str(options.sessions)]
        command += ["-m", str(options.messages), "-l", str(options.size)]
        command += ["-r", str(options.recipients)] if options.recipients > 1 else []
        command += ["-d"] if options.reuse else []
        return [*command, "-f", "source@from.bench.test", "-t", "r@d0.bench.test", f"{HOST}:{port}"]

    def transfer(
        self,
        port: int,
        check: Callable[[], None],
        after: Callable[[], None],
        begun: Callable[[Helper], None] = lambda source: None,
    ) -> None:
        """Run smtp-source to its end, and wait until smtp-sink has as many."""
        messages, figures = self.options.messages, self.result.figures
        cpu.settle(self.groups)
        before = self.mark()
        first = time.monotonic()
        log = self.directory / "smtp-source.log"
        with log.open("wb") as file:
            source = subprocess.Popen(
                self._command(port),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=self.tools.environment,
                cwd="/",
            )
        accepted = 0.0
        try:
            accepted = self._sending(source, check)
            if accepted and self.counter:
                self._arriving(self.counter, check)
        except DaemonError as error:
            self.result.problems.append(str(error))
        finally:
            with contextlib.suppress(ProcessLookupError):
                source.kill()
            source.wait()
        if not accepted or source.returncode:
            self.result.problems.append(f"smtp-source: {log.read_text()[-300:] or 'stopped'}")
        after()
        self._cpu(before, self.mark(), messages)
        if self.counter is None:
            figures["messages/s"] = messages / (accepted - first) if accepted else 0.0
            return
        if accepted:
            figures["taken in, messages/s"] = messages / (accepted - first)
        figures["messages/s"] = self.counter.count / max(0.001, self.counter.last - first)
        if self.counter.count != messages and self.options.recipients == 1:
            self.result.problems.append(f"{self.counter.count} messages at the sink of {messages}")

    def _still(self) -> Callable[[], bool]:
        """Return a question: has nothing arrived for as long as the bench waits?"""
        moved, seen = time.monotonic(), -1

        def stalled() -> bool:
            nonlocal moved, seen
            count = self.counter.count if self.counter else -1
            if count != seen:
                moved, seen = time.monotonic(), count
            # smtp-source shows nothing, so intake alone has longer
            patience = self.options.stall * (1 if self.counter else 10)
            return time.monotonic() - moved > patience

        return stalled

    def _sending(self, source: subprocess.Popen[bytes], check: Callable[[], None]) -> float:
        """Return when smtp-source had sent everything, 0.0 if it does not get on."""
        ended: list[float] = []

        def wait() -> None:
            source.wait()
            ended.append(time.monotonic())

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()  # Popen.wait with a timeout looks only every 50 ms
        stalled = self._still()
        while not stalled():
            waiter.join(0.1)
            if ended:
                return ended[0]
            check()
        return 0.0

    def _arriving(self, counter: Counter, check: Callable[[], None]) -> None:
        stalled = self._still()
        while counter.count < self.options.messages and not stalled():
            time.sleep(0.05)
            check()
