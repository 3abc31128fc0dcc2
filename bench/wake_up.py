"""The command `bench/wakeup`: from COMMIT to the next hop without NOTIFY, and the cost of it."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil
import psycopg

from bench.columns import aligned
from bench.daemons import Product
from bench.database import Server, check_durability, fresh
from bench.helper import Helper
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.progress import log
from bench.source import percentile

ABOUT = f"""Measure how fast mail that SQL programs commit without NOTIFY gets to the next hop.

Measures CPU time while nothing happens, with and without the watch for new rows. Then commits
messages at a rate, and some in transactions that stay open after the insert. {EXIT}a limit was not
kept."""
RARELY = 15.0  # seconds until the watch has its longer interval
PATIENCE = 15.0  # seconds that mail may take
INSERT = """
WITH body AS (
    INSERT INTO messages (id, size, trace, body)
    VALUES (nextval('message_ids'), 20, E'Received: by bench\\r\\n',
        E'Subject: urgent\\r\\n\\r\\n\\r\\n')
    RETURNING id
)
INSERT INTO queue (message_id, sender, recipient, domain)
SELECT id, 'source@bench.example', %s, 'hop.example' FROM body
"""


class Program:
    """An application: commits mail, and remembers when."""

    def __init__(self, uri: str, sink: Helper) -> None:
        self._uri = uri
        self._sink = sink
        self._numbers = iter(range(1 << 30))
        self._lock = threading.Lock()
        self.committed: dict[str, float] = {}

    def _send(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        with self._lock:
            name = str(next(self._numbers))
        with connection.transaction():
            connection.execute(INSERT, [f"u{name}@hop.example"])
            time.sleep(seconds)
        self.committed[name] = time.monotonic()

    def send(self, seconds: float, number: int, rate: float) -> list[float]:
        """Send at the rate by transactions that are open so long; return sorted times in s."""
        self.committed = {}
        began = time.monotonic()

        def work(share: range) -> None:
            with psycopg.connect(self._uri, autocommit=True) as connection:
                connection.execute("SET search_path = pgmta, public")
                for n in share:
                    time.sleep(max(0.0, began + n / rate - time.monotonic()))
                    self._send(connection, seconds)

        side = int(seconds * rate) + 1  # transactions that are open at a time
        threads = [threading.Thread(target=work, args=[range(n, number, side)])
                   for n in range(side)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._times(number)

    def _times(self, number: int) -> list[float]:
        end = time.monotonic() + PATIENCE
        while True:
            self._sink.tell("report")
            came = self._sink.wait("report")["urgent"]
            found = [came[n][0] - at for n, at in self.committed.items() if n in came]
            if len(found) == number or time.monotonic() > end:
                return sorted(found) + [PATIENCE] * (number - len(found))
            time.sleep(0.1)


def share(pids: list[int], seconds: float) -> float:
    """Return the CPU time of the processes over that time, in percent of a core."""

    def used() -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)

    before, began = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - began) * 100


def watcher(uri: str) -> list[int]:
    """Return the backend of the watch, if there is one on this machine."""
    with psycopg.connect(uri, autocommit=True) as connection:
        return [pid for (pid,) in connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name = 'pgmta watch' AND datname = current_database()"
        )]  # fmt: skip


@contextlib.contextmanager
def relay(product: Product, port: int, more: dict[str, Any]) -> Any:
    """Run one queued, and give its process."""
    (pid,) = product.start_queued(1, port, {"process": more})
    try:
        yield pid
        product.check()
    finally:
        product.stop()


def measure(
    commands: Path, directory: Path, server: Server, times: tuple[float, int, float], poll: str
) -> tuple[dict[str, float], list[str]]:
    """Measure on a fresh database; `times` are idle seconds, number of messages and rate."""
    idle, number, rate = times
    figures: dict[str, float] = {}
    notes: list[str] = []
    with fresh(server, keep=False) as uri, contextlib.ExitStack() as stack:
        check_durability(uri)
        product = Product(commands, directory, uri, notes)
        product.migrate()
        sink = Helper("urgent_sink", {"rows": 1}, directory / "sink.log")
        stack.callback(sink.close)
        port = int(sink.wait("ready")["port"])
        program = Program(uri, sink)
        for name, watch in (("without the watch", None), ("with the watch", "40ms")):
            with relay(product, port, {"watch": watch, "poll": poll}) as pid:
                log(f"{name}: {idle:g} s idle, then mail")
                time.sleep(RARELY)
                own = watcher(uri)
                figures[f"queued {name}, % of a core"] = share([pid], idle)
                if own:
                    figures["backend of the watch, % of a core"] = share(own, idle)
                    rest(program, figures, number, rate)
                else:
                    waits = program.send(0.0, number // 4, rate)
                    figures[f"{name}: ms p50"] = percentile(waits, 0.5) * 1000
        figures["the watch, % of a core"] = (
            figures["queued with the watch, % of a core"]
            + figures["backend of the watch, % of a core"]
            - figures["queued without the watch, % of a core"]
        )
    return figures, notes


def rest(program: Program, figures: dict[str, float], number: int, rate: float) -> None:
    """Measure the waits of each kind of transaction."""
    kinds: tuple[tuple[str, Callable[[], list[float]]], ...] = (
        ("at the rate", lambda: program.send(0.0, number, rate)),
        ("open for 0.1 s", lambda: program.send(0.1, number // 4, rate / 4)),
        ("open for 3 s", lambda: program.send(3.0, number // 16, rate / 16)),
    )
    for name, send in kinds:
        waits = send()
        for part in (0.5, 0.99):
            figures[f"{name}: ms p{part * 100:g}"] = percentile(waits, part) * 1000


@relay_options("rate", "uri", "keep", "commands")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--idle", default=60.0, help="Seconds of each window in which nothing happens.")
@click.option("--number", default=400, type=click.IntRange(32), help="Messages at the rate.")
@click.option("--poll", default="1s", help="queued's process.poll.")
@click.option("--median", default=50.0, help="Limit of p50 in ms.")
@click.option("--longest", default=250.0, help="Limit of p99 in ms.")
@click.option("--cost", default=0.3, help="Limit of the watch in percent of a core.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    idle: float, number: int, poll: str, median: float, longest: float, cost: float, json_: bool,
    rate: float, uri: str | None, keep: bool, commands: Path | None,
) -> None:  # fmt: skip
    """Read the options, run, show."""
    with failing():
        directory, server, about = opened(uri, keep, "")
        times = idle, number, rate or 10.0
        figures, notes = measure(commands_of(commands), directory, server, times, poll)
    if json_:
        click.echo(dump({"about": about, "figures": figures}))
    else:
        click.echo(f"{about}\n\n{aligned([[k, f'{v:.2f}'] for k, v in figures.items()])}\n")
    for note in notes:
        log(f"note: {note}")
    limits = (("at the rate: ms p50", median), ("at the rate: ms p99", longest),
              ("the watch, % of a core", cost))  # fmt: skip
    finish([], [f"{n}: {figures[n]:.2f}, limit {most:g}" for n, most in limits
                if figures[n] > most])  # fmt: skip
