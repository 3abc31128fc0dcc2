"""The line protocol between the bench and its source and sink: JSON lines over pipes."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class HelperError(RuntimeError):
    """A source or sink process went away or did not answer."""


def say(**message: Any) -> None:
    """Send one message to the parent (in the helper process)."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def listen(loop: asyncio.AbstractEventLoop, on_command: Callable[[str], None]) -> None:
    """Call on_command for each line of standard input; leave at its end."""

    def readable() -> None:
        data = os.read(0, 4096)
        if not data:
            loop.remove_reader(0)
            loop.stop()
        for word in data.decode().split():
            on_command(word)

    loop.add_reader(0, readable)


def run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run the work of a helper process until it ends or standard input does; raise its error."""
    task = loop.create_task(work)
    task.add_done_callback(lambda _: loop.stop())
    loop.run_forever()
    if task.done():
        task.result()


def be_another_host() -> None:
    """Have this helper process go on at its time, whatever else the machine does (needs root)."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


class Helper:
    """A source or sink process as the bench sees it."""

    def __init__(
        self, module: str, config: dict[str, Any], log: Path, words: Sequence[str] = ()
    ) -> None:
        """Start `bench.module`; `words` go before its command."""
        self.name = module
        self.latest: dict[str, Any] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*words, sys.executable, "-m", f"bench.{module}", json.dumps(config)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            with self._changed:
                if "is" in message:
                    self._answers[message["is"]] = message
                else:
                    self.latest = message
                self._changed.notify_all()

    def tell(self, command: str) -> None:
        """Send one command word."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()

    def poll(self, name: str, seconds: float) -> dict[str, Any] | None:
        """Return the answer of that name, waiting at most so long; None when not there yet."""
        end = time.monotonic() + seconds
        with self._changed:
            while name not in self._answers:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 0.2))
                if self.process.poll() is not None and not self._reader.is_alive():
                    break
            answer = self._answers.pop(name, None)
        if answer is None and self.process.poll() is not None:
            tail = self._log.read_text(errors="replace")[-1000:]
            raise HelperError(f"{self.name} ended with {self.process.returncode}: {tail}")
        return answer

    def wait(self, name: str, seconds: float = 20.0) -> dict[str, Any]:
        """Return the answer of that name or raise."""
        answer = self.poll(name, seconds)
        if answer is None:
            raise HelperError(f"{self.name} gave no {name!r} within {seconds:g} s")
        return answer

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(3)
        if self.process.stdout is not None:
            self.process.stdout.close()
