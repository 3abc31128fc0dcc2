"""The real daemons as subprocesses, with generated configuration files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import psutil
import yaml

from tests.support.starter import Forked, fork
from tests.support.submit import Client
from tests.support.waiting import PATIENCE, free_port, until

ROOT = Path(__file__).resolve().parents[2]
HOSTNAME = "relay.example"
Config = dict[str, Any]
Environment = Mapping[str, str]
NOTHING: Environment = MappingProxyType({})


def merge(base: Config, changes: Config) -> Config:
    """Return `base` with the keys of `changes`, section by section (routes are replaced)."""
    result = dict(base)
    for key, value in changes.items():
        section = key != "routes" and isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merge(base[key], value) if section else value
    return result


class Daemon:
    """One process (with its children), started at once; its log is read line by line.

    `more` are further variables of its environment. `queued` without any is forked.
    """

    module = ""
    command = "run"
    before: tuple[str, ...] = ()  # words before the command, such as those of a network namespace

    def __init__(self, folder: Path, name: str, config: Config, more: Environment) -> None:
        self.name = name
        self.more = more
        self.path = folder / f"{name}.yaml"
        self.config = config
        self.write(config)
        self.log: list[Config] = []
        self._changed = threading.Condition()
        self.start()

    def start(self) -> None:
        """Run it, again after it has ended; the log goes on."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PGMTA_")}
        environment |= {"PYTHONPATH": str(ROOT), **self.more}  # for hooks in tests
        self.process = self._process(environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _process(self, environment: Environment) -> subprocess.Popen[bytes] | Forked:
        words = [self.command, "-c", str(self.path)]
        if self.module == "queued" and not self.before and not self.more:
            return fork(words, environment)
        return subprocess.Popen(
            [*self.before, sys.executable, "-m", self.module, *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as stream:
            for line in stream:
                try:
                    entry = json.loads(line)
                except ValueError:
                    entry = {"event": line.decode(errors="replace").rstrip(), "level": "raw"}
                with self._changed:
                    self.log.append(entry)
                    self._changed.notify_all()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid

    def write(self, config: Config | str) -> None:
        """Replace the configuration file (atomically: it may be being read)."""
        temporary = self.path.with_suffix(".new")
        temporary.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        temporary.rename(self.path)

    def events(self, event: str) -> list[Config]:
        """Lines of the log with that event."""
        return [entry for entry in list(self.log) if entry.get("event") == event]

    def wait_log(self, event: str, count: int = 1, timeout: float = PATIENCE) -> Config:
        """Wait until the event has been logged so often; return the last line with it."""

        def there() -> bool:
            return len(self.events(event)) >= count or not self.alive

        with self._changed:
            end = time.monotonic() + timeout
            while not there() and time.monotonic() < end:
                self._changed.wait(0.2)
        if not self.alive:
            self._reader.join(PATIENCE)  # its last words
        found = self.events(event)
        assert len(found) >= count, f"{self.name} did not log {event!r}:\n{self.story()}"
        return found[-1]

    def story(self, most: int = 0) -> str:
        """The log, for people; at most `most` entries of its beginning, and of its end."""
        shown = [f"[{self.name} {self.pid}] {entry}" for entry in list(self.log)]
        if most and len(shown) > 2 * most:
            shown[most:-most] = [f"[{self.name}] {len(shown) - 2 * most} entries are left out"]
        return "\n".join(shown)

    def faults(self) -> list[Config]:
        """Log lines that a healthy process does not write."""
        bad = ("raw", "error", "critical")
        return [entry for entry in list(self.log) if entry.get("level") in bad]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process, not to its children."""
        self.process.send_signal(number)

    def stop(self, timeout: float = PATIENCE) -> None:
        """SIGTERM; the process has to end with 0."""
        self.signal(signal.SIGTERM)
        self.wait(timeout)

    def wait(self, timeout: float = PATIENCE) -> None:
        """Wait for the clean end of a process that got a signal to stop."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not stop:\n{self.story()}") from None
        self._reader.join(5)
        assert status == 0, f"{self.name} ended with {status}:\n{self.story()}"

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def clean(self) -> None:
        """End whatever is left, children included."""
        if self.alive:
            self.process.kill()
        self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # our own session
        self._reader.join(5)


def lives(process: psutil.Process) -> bool:
    """Whether the process runs: an orphan that waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Smtpd(Daemon):
    """`smtpd run`, on a free port."""

    module = "smtpd"

    def __init__(
        self, folder: Path, name: str, uri: str, changes: Config, more: Environment = NOTHING
    ) -> None:
        self.port = free_port()
        base = {
            "environment": {"hostname": HOSTNAME, "database": {"uri": uri}},
            "listen": [{"address": "127.0.0.1", "port": self.port, "role": "internal"}],
            "maildrop": {"directory": None},
            "processes": 1,
            "log": {"format": "json"},
        }
        config = merge(base, changes)
        self.port = config["listen"][0].get("port", self.port)
        super().__init__(folder, name, config, more)

    def ready(self) -> Self:
        """Wait until every child serves, and one greets."""
        self.wait_log("serving", self.config["processes"])
        self.connect().close()
        return self

    def connect(self) -> Client:
        """A new session, greeted."""
        return Client(self.port)

    def children(self) -> list[psutil.Process]:
        """The serving processes."""
        return psutil.Process(self.pid).children()


class Queued(Daemon):
    """`queued run`."""

    module = "queued"

    def __init__(
        self, folder: Path, name: str, uri: str, changes: Config, more: Environment = NOTHING
    ) -> None:
        base = {
            "environment": {"hostname": HOSTNAME, "database": {"uri": uri}},
            # next hops that hold mail get all connections at once
            "delivery": {"ipv6": False, "start": 20},
            "retry": {"intervals": ["1s"]},
            "log": {"format": "json"},
        }
        super().__init__(folder, name, merge(base, changes), more)

    def ready(self) -> Self:
        """Wait until it claims."""
        self.wait_log("ready")
        return self

    def reload(self, config: Config | str) -> None:
        """Change the file, send SIGHUP, and wait until the process has looked at it."""
        self.write(config)
        told = ("configuration read again", "configuration kept as it was")
        before = sum(len(self.events(event)) for event in told)
        self.signal(signal.SIGHUP)
        until(lambda: sum(len(self.events(e)) for e in told) > before, describe="SIGHUP")
