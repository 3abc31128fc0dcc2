"""`queuectl top` in a terminal beside real traffic: figures, flicker, cost, and its end."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from rich.console import Console
from rich.text import Text

from tests.support.database import PrivateServer
from tests.support.nexthop import Do, Transaction
from tests.support.system import System
from tests.support.waiting import take_time, until

pytestmark = [pytest.mark.slow, pytest.mark.needs("tmux")]
SIZES = [(80, 24), (200, 50)]
PARTS = ("pgmta top", "accepted ", "QUEUED ", "NEXT HOP", "HOST ", "WORKER ", "q Quit")
PICTURES = os.environ.get("PGMTA_PICTURES")
"""A folder for a picture of the smaller one: that in docs/pictures."""

MOST_CPU = 0.3  # of a core; 0.15 is the aim, and a slow machine takes longer for the same

RUN = "from queued.cli.queuectl import main; main(prog_name='queuectl')"


def deferring(point: str, line: str, transaction: Transaction | None) -> Do | None:
    late = point == "RCPT" and "@late" in line
    return Do(line="450 4.2.1 greylisted") if late else None


class Terminal:
    """A tmux with one pane, in which queuectl top runs."""

    def __init__(self, folder: Path, config: Path, size: tuple[int, int]) -> None:
        self._socket = folder / "tmux"
        self.written = folder / "written"
        command = [sys.executable, "-c", RUN, "top", "-c", str(config)]
        modes = "stty -g | cksum"
        script = f"{modes}; {shlex.join(command)}; echo ended $?; {modes}; cat"
        width, height = map(str, size)
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, script)
        self._tmux("pipe-pane", "-o", f"cat >> {shlex.quote(str(self.written))}")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def save_picture(self, path: Path) -> None:
        console = Console(record=True, width=80, file=io.StringIO())
        console.print(Text.from_ansi(self._tmux("capture-pane", "-p", "-e")))
        drawn = console.export_svg(title="queuectl top")
        fonts = r"@font-face \{.*?\}\s*"  # of another host
        path.write_text(re.sub(fonts, "", drawn, flags=re.DOTALL), encoding="utf-8")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def ask(self, what: str) -> str:
        return self._tmux("display-message", "-p", f"#{{{what}}}").strip()

    def process(self) -> psutil.Process:
        shell = psutil.Process(int(self.ask("pane_pid")))
        [found] = [each for each in shell.children() if RUN in each.cmdline()]
        return found

    def shows(self, what: Callable[[str], object]) -> str:
        def look() -> str:
            text = self.text()
            return text if what(text) else ""

        return until(look)

    def ended(self) -> None:
        """Wait for its end, and check that the terminal is as before."""
        text = self.shows(lambda text: re.search(r"ended \d+\n\S", text))
        before, said, after = [line for line in text.splitlines() if line]
        assert said == "ended 0"
        assert before == after  # the modes of the line
        assert (self.ask("alternate_on"), self.ask("cursor_flag")) == ("0", "1")
        assert self.ask("mouse_any_flag") == "0"

    def kill(self) -> None:
        self._tmux("kill-server")


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def terminal(
    request: pytest.FixtureRequest, tmp_path: Path, private_server: PrivateServer
) -> Iterator[Terminal]:
    """A terminal of each size."""
    config = tmp_path / "top.yaml"
    config.write_text(yaml.safe_dump({"environment": {"database": {"uri": private_server.uri}}}))
    terminal = Terminal(tmp_path, config, request.param)
    try:
        yield terminal
    finally:
        terminal.kill()


class Traffic:
    """Mail that comes at a steady rate, a tenth of it to a host that defers."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._stop = threading.Event()
        self._times: list[float] = []  # of each row
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._system.enqueue(
                *(f"r{n}@d{n}.example" for n in range(18)), "a@late.example", "b@late.example"
            )
            self._times += [time.monotonic()] * 20

    def rate(self) -> float:
        """Return the rows per second of the last 10 s."""
        return sum(each > time.monotonic() - 10 for each in self._times) / 10

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def numbers(text: str) -> dict[str, float]:
    """Return the figures of the lines at the top, by their names."""
    found = re.findall(r"(\w+) ([\d,.]+)(?:/s)?(?= |,|;|\n)", "\n".join(text.splitlines()[1:4]))
    return {name: float(value.replace(",", "")) for name, value in found}


def agree(system: System, traffic: Traffic, text: str) -> bool:
    """Return whether the rates are those of the last 10 s, but for the time between two looks."""
    [rates] = system.ask("""
        SELECT (count(*) FILTER (WHERE event = 'delivered') / 10.0)::float8 AS delivered,
            (count(*) FILTER (WHERE event = 'deferred') / 10.0)::float8 AS deferred
        FROM attempts WHERE ended_at > now() - interval '10 s'
    """)  # fmt: skip
    shown, true = numbers(text), {**rates, "accepted": traffic.rate(), "unknown": 0.0}
    return all(abs(shown[name] - true[name]) <= 0.1 * true[name] for name in true)


def test_top_beside_traffic(
    private_system: System, private_server: PrivateServer, terminal: Terminal
) -> None:
    system = private_system
    queued = system.queued(system.hop(deferring), retry={"intervals": ["1h"]})
    traffic = Traffic(system)
    try:
        terminal.shows(lambda t: all(part in t for part in PARTS) and "greylisted" in t)
        terminal.shows(lambda t: numbers(t).get("delivered", 0) > 50)
        take_time(10.0)  # a whole window
        until(lambda: agree(system, traffic, terminal.text()), describe="figures of the tables")

        if PICTURES and terminal.ask("pane_width") == "80":
            system.ask("UPDATE queue_counted SET at = '-infinity' RETURNING 1")
            terminal.shows(lambda t: numbers(t)["DEFERRED"])
            terminal.save_picture(Path(PICTURES) / "top.svg")

        # never a blank part
        began, cpu = time.monotonic(), sum(terminal.process().cpu_times()[:2])
        captures, erased = 0, terminal.written.stat().st_size
        while time.monotonic() < began + 4:
            seen = terminal.text()
            assert all(part in seen for part in PARTS), seen
            captures += 1
        spent = (sum(terminal.process().cpu_times()[:2]) - cpu) / (time.monotonic() - began)
        written = terminal.written.read_bytes()[erased:]
        assert re.search(rb"\x1b\[[0-3]?[JK]", written) is None
        print(f"{captures} captures; top: {100 * spent:.1f} % of a core, "
              f"{len(written) / 4:.0f} octets per second")  # fmt: skip
        assert spent <= MOST_CPU
    finally:
        traffic.stop()
    system.wait_queue(lambda rows: {row["status"] for row in rows} == {"DEFERRED"})

    # the count of the queue
    system.ask("UPDATE queue_counted SET at = '-infinity' RETURNING 1")
    [waits] = system.ask("SELECT count(*) FROM queue")
    terminal.shows(lambda t: numbers(t)["DEFERRED"] == waits["count"] and "d0.example" not in t)
    until(lambda: system.ask("SELECT name FROM workers WHERE in_flight = 0"))
    [worker] = system.ask("SELECT handled FROM workers")
    terminal.shows(lambda t: re.search(rf" 0 +\S+ +{worker['handled']:,}\n", t))
    if terminal.ask("pane_width") != "80":
        return  # once is enough for the rest
    system.expected |= {"connection lost", "waiting for PostgreSQL"}
    queued.stop()
    private_server.crash()
    terminal.shows(lambda t: "DATABASE AWAY" in t and "DEFERRED" in t)
    private_server.start()
    terminal.shows(lambda t: "DATABASE AWAY" not in t)
    terminal.press("q")
    terminal.ended()


@pytest.mark.parametrize("signal", [2, 15, 1], ids=["INT", "TERM", "HUP"])
@pytest.mark.parametrize("terminal", SIZES[:1], indirect=True)
def test_a_signal_ends_it_cleanly(terminal: Terminal, signal: int) -> None:
    terminal.shows(lambda t: all(part in t for part in PARTS))
    terminal.process().send_signal(signal)
    terminal.ended()
