"""The product's processes: written configuration, start, readiness, clean stop."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

HOST = "127.0.0.1"
NO_SETTINGS: Mapping[str, Any] = {}
START_TIMEOUT_S = 30.0


class DaemonError(RuntimeError):
    """A process of the product did not start, or ended early."""


def free_port() -> int:
    """Return a free TCP port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with others laid over them: sections merge, all else is replaced."""
    found = dict(settings)
    for name, value in more.items():
        under = found.get(name)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            value = merged(under, value)
        found[name] = value
    return found


def greets(port: int) -> bool:
    """Return whether an SMTP server on the port says 220."""
    try:
        with socket.create_connection((HOST, port), 2) as connection:
            connection.settimeout(2)
            greeting = connection.recv(3)
            connection.sendall(b"QUIT\r\n")
            return greeting == b"220"
    except OSError:
        return False


@dataclass
class Product:
    """Where the commands are, and the directory for configuration and logs."""

    commands: Path
    directory: Path
    uri: str
    notes: list[str]
    expected: tuple[str, ...] = ()  # lines of logs that have one of these are not noted
    running: list[tuple[str, subprocess.Popen[bytes], Path]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)  # variables of the daemons
    started: int = 0  # number of processes of queued that were started so far
    embedded: bool = False  # whether the database is on the server that `start_database` runs
    database: subprocess.Popen[bytes] | None = None

    def _config(self, name: str, settings: Mapping[str, Any]) -> Path:
        environment = {
            "hostname": "bench.pgmta.test",
            "directory": str(self.directory),
            **({} if self.embedded else {"database": {"uri": self.uri}}),
        }
        path = self.directory / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump(
                {"environment": environment, **settings, "log": {"level": "warning"}},
                sort_keys=False,
            )
        )
        return path

    def _queuectl(self, path: Path, *words: str) -> str:
        done = subprocess.run(
            [self.commands / "queuectl", *words, "-c", path],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            said = done.stderr[-1500:] or done.stdout[-1500:]
            raise DaemonError(f"queuectl {words[0]}: {said}")
        return done.stdout

    def migrate(self) -> None:
        """Make the tables."""
        config = self._config("queued", {"routes": {"*": f"{HOST}:25"}})
        try:
            self._queuectl(config, "database", "migrate")
        except DaemonError:  # the other checkout of `--against` has it at the top
            self._queuectl(config, "migrate")

    def start_database(self) -> int:
        """Start `queuectl database run` in the directory; return its process once it listens."""
        config = self._config("queued", {})
        command = [str(self.commands / "queuectl"), "database", "run", "-c", str(config)]
        self.database = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.database.stdout
        if not self.database.stdout.readline():
            raise DaemonError(f"no server runs in {self.directory}")
        return self.database.pid

    def _start(self, command: str, path: Path, log: Path, verb: str = "run") -> int:
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self.commands / command, verb, "-c", path],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
            )
        self.running.append((command, process, log))
        return process.pid

    def start_smtpd(
        self,
        processes: int | None,
        more: Mapping[str, Any] = NO_SETTINGS,
        listener: Mapping[str, Any] = NO_SETTINGS,
    ) -> tuple[int, int]:
        """Start smtpd, with more settings for it and its listener, and wait for its greeting.

        Return process and port.
        """
        port = free_port()
        settings: dict[str, Any] = {
            "listen": [{"address": HOST, "port": port, **listener}],
            "maildrop": {"directory": None},
            "relay": {"networks": ["127.0.0.0/8"]},
        }
        if processes is not None:
            settings["processes"] = processes
        path = self._config("smtpd", merged(settings, more))
        pid = self._start("smtpd", path, self.directory / "smtpd.log")
        end = time.monotonic() + START_TIMEOUT_S
        while not greets(port):
            self.check()
            if time.monotonic() > end:
                raise DaemonError(f"smtpd does not greet\n{self._tail('smtpd')}")
            time.sleep(0.05)
        return pid, port

    def start_queued(
        self, number: int, next_hop: int, more: Mapping[str, Any] = NO_SETTINGS
    ) -> list[int]:
        """Start `number` queued that deliver to the port, with `more` settings; wait for them."""
        routes = {"*": f"{HOST}:{next_hop}", "dead.example": f"{HOST}:{free_port()}"}
        path = self._config("queued", merged({"routes": routes}, more))
        self.started += number
        pids = [
            self._start("queued", path, self.directory / f"queued.{worker}.log")
            for worker in range(self.started - number, self.started)
        ]
        end = time.monotonic() + START_TIMEOUT_S
        owners = f":({'|'.join(map(str, pids))}):"
        with psycopg.connect(self.uri, autocommit=True) as connection:
            there = "SELECT count(*) FROM workers WHERE owner ~ %s"
            while connection.execute(there, [owners]).fetchone() != (number,):
                self.check()
                if time.monotonic() > end:
                    raise DaemonError(f"queued is not ready\n{self._tail('queued')}")
                time.sleep(0.05)
        return pids

    def api_token(self) -> str:
        """Return the token of a new API key that sends from example.org."""
        words = ("apikey", "new", "bench", "--scope", "send", "--sender", "@example.org")
        return self._queuectl(self._config("queued", {}), *words).strip()

    def start_api(self, more: Mapping[str, Any] = NO_SETTINGS) -> tuple[int, int]:
        """Start `queued web` with the HTTP API alone; return process and port once it listens."""
        port = free_port()
        listen = [{"address": HOST, "port": port, "serves": ["api"]}]
        pid = self._start(
            "queued", self._config("web", merged({"listen": listen}, more)),
            self.directory / "web.log", "web",
        )  # fmt: skip
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            self.check()
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), 2):
                return pid, port
            if time.monotonic() > end:
                raise DaemonError(f"queued web does not listen\n{self._tail('queued')}")
            time.sleep(0.05)

    def _tail(self, command: str) -> str:
        logs = [log for name, _, log in self.running if name == command]
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs)

    def check(self) -> None:
        """Raise when one of the processes has ended."""
        for command, process, log in self.running:
            if process.poll() is not None:
                tail = log.read_text(errors="replace")[-1500:]
                raise DaemonError(f"{command} ended with {process.returncode}\n{tail}")

    def end(self, pid: int, number: int, within: float) -> tuple[int | None, float]:
        """Send a signal to one process, and wait for its end.

        Return its exit code, and the seconds that it took; None: it did not end, and is killed.
        """
        entry = next(each for each in self.running if each[1].pid == pid)
        command, process, log = entry
        began = time.monotonic()
        process.send_signal(number)
        try:
            code: int | None = process.wait(within)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(pid, signal.SIGKILL)
            process.wait()
        took = time.monotonic() - began
        self.running.remove(entry)
        self._note_lines(command, log)
        return code, took

    def _note_lines(self, command: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines()
        lines = [line for line in lines if not any(word in line for word in self.expected)]
        if lines:
            self.notes.append(f"{command} logged {len(lines)} lines, last: {lines[-1][:400]}")

    def stop(self) -> None:
        """Stop all with SIGTERM; note each that does not end cleanly or has logged something."""
        for _, process, _ in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for command, process, log in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                self.notes.append(f"{command} did not end 20 s after SIGTERM, killed")
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            else:
                if process.returncode:
                    self.notes.append(f"{command} ended with {process.returncode}")
            self._note_lines(command, log)
        self.running.clear()
        if self.database:
            self.database.terminate()
            self.database.wait()
