"""The command bench/collectors: how soon tokens become mail, and whether a budget holds."""

import json
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import click
import psycopg

from bench.columns import aligned
from bench.daemons import Product
from bench.database import Server, fresh
from bench.helper import Helper
from bench.options import (
    EXIT_CODES_HELP,
    HELP_SETTINGS,
    commands_of,
    dump,
    failing,
    finish,
    hardware,
    opened,
    relay_options,
)
from bench.progress import log
from pgmta_features.lifecycle.installation import install

FIRST_S = 1.0
LEAST_SHARE = 0.95
BURSTS = (1, 100, 10_000)
RATES = (0.38, 38.0, None)
PROCESS_NUMBERS = (1, 3)
ABOUT = f"""Measure how soon tokens become mail, and whether a budget holds.

Accounts are inserted in bursts, and collectors of one or several queued make their mail, which a
next hop takes. "First" and "last" are the times from the commit of a burst to MAIL of its first
and last mail. "Most" is the largest number of tokens that were collected in any window of a second,
or of 1/rate for less than one per second; "share" is that of the rate while tokens of a burst wait,
the median of the bursts. Other work delays it. {EXIT_CODES_HELP}the 99th percentile of the
first mail is above {FIRST_S:g} s, a window has more than the rate (rounded up), or less than
{LEAST_SHARE:g} of it is used."""

_TEMPLATE = """
INSERT INTO pgmta.templates (name, version, sender, from_field, subject, body, words) VALUES
    ('activation', 1, 'a@a.example', 'a@a.example', 'Welcome', '{{link}}', '{"link": ["body"]}'),
    ('recovery', 1, 'a@a.example', 'a@a.example', 'Recovery', '{{link}}', '{"link": ["body"]}')
"""
_INSERT = """
INSERT INTO lifecycle.accounts (email, login)
SELECT 'u' || n || '@b.example', 'u' || n FROM generate_series(%s::integer, %s::integer) AS n
"""
_COLLECTED = """
SELECT extract(epoch FROM collected_at)::float8 FROM lifecycle.tokens
WHERE collected_at IS NOT NULL ORDER BY 1 OFFSET %s
"""
_DONE = "SELECT count(*) FROM lifecycle.tokens WHERE collected_at IS NOT NULL"


@dataclass(frozen=True)
class Run:
    """Bursts of accounts, for collectors of `processes` with a budget of `rate` per second."""

    burst: int
    rate: float | None
    processes: int
    bursts: int = 5
    seconds: float = 60.0  # for one burst, or as much of it as the rate allows

    @property
    def name(self) -> str:
        """The burst, the rate and the number of processes."""
        rate = f"{self.rate:g}/s" if self.rate else "no budget"
        return f"{self.burst} tokens, {rate}, {self.processes} processes"

    @property
    def window(self) -> float:
        """Seconds of the window in which a rate counts."""
        return max(1.0, 1 / self.rate) if self.rate else 1.0


@dataclass(frozen=True)
class Outcome:
    """Seconds of each burst until its first and last mail, and what became of the rate."""

    run: Run
    first: Sequence[float]
    last: Sequence[float]
    most: int
    share: float | None
    mails: int

    @property
    def allowed(self) -> int | None:
        """The most tokens in a window; None without a budget."""
        return -int(-self.run.rate * self.run.window // 1) if self.run.rate else None

    def misses(self) -> list[str]:
        """Return the limits that were missed."""
        found = []
        if (first := percentile(self.first, 0.99)) > FIRST_S:
            found.append(f"{self.run.name}: the first mail after {first:.2f} s")
        if self.allowed and self.most > self.allowed:
            found.append(f"{self.run.name}: {self.most} in a window, {self.allowed} allowed")
        if self.share is not None and self.share < LEAST_SHARE:
            found.append(f"{self.run.name}: {self.share:.3f} of the rate")
        return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def most_in(times: Sequence[float], window: float) -> int:
    """Return the largest number of times in any window, which includes its begin alone."""
    return max((bisect_left(times, at + window) - n for n, at in enumerate(times)), default=0)


class Line:
    """A database, a next hop, and queued with a collector."""

    def __init__(self, run: Run, server: Server, directory: Path, commands: Path) -> None:
        self._run = run
        self._stack = ExitStack()
        uri = self._stack.enter_context(fresh(server, keep=False))
        self._file = directory / "times.json"
        self._sink = Helper("rate_sink", {"file": str(self._file)}, directory / "sink.log")
        self._stack.callback(self._sink.close)
        port = int(self._sink.wait("ready")["port"])
        self._product = Product(commands, directory, uri, [])
        self._stack.callback(self._product.stop)
        self._product.migrate()
        install(uri)
        self._db = self._stack.enter_context(psycopg.connect(uri, autocommit=True))
        self._db.execute(_TEMPLATE)
        keys = {purpose: [f"{purpose}.key"] for purpose in ("activate", "recover")}
        for purpose in keys:
            (directory / f"{purpose}.key").touch(0o600)
            (directory / f"{purpose}.key").write_text(purpose[0].encode().hex() * 32)
        collector: dict[str, Any] = {"url": "https://a.example"}
        if run.rate:
            collector["budget"] = {"rate": run.rate}
        self._product.start_queued(run.processes, port, {"tokens": keys, "collectors": [collector]})
        self._wait(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name LIKE 'pgmta queued collector%'", run.processes
        )  # fmt: skip

    def close(self) -> None:
        """End all."""
        self._stack.close()

    def _wait(self, query: str, number: int, seconds: float = 30.0) -> None:
        """Wait until a query returns the number, or the time is over."""
        end = time.monotonic() + seconds
        while self._number(query) < number and time.monotonic() < end:
            self._product.check()
            time.sleep(0.02)

    def _number(self, query: str) -> int:
        row = self._db.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def burst(self, number: int) -> tuple[float, float, list[float]]:
        """Insert a burst, and wait for its mail.

        Return the seconds until its first and its last mail, and when its tokens were collected.
        Those that the rate does not allow in the time of a burst wait no longer then.
        """
        run = self._run
        first = number * run.burst + 1
        earlier = self._number(_DONE)
        before = time.monotonic()
        self._db.execute(_INSERT, (first, first + run.burst - 1))
        began = time.monotonic()
        self._wait(_DONE, earlier + run.burst, run.seconds)
        self._wait("SELECT -count(*) FROM pgmta.queue WHERE status <> 'FAILED'", 0, run.seconds)
        collected = [at for (at,) in self._db.execute(_COLLECTED, [earlier])]
        self._db.execute("DELETE FROM lifecycle.waiting_tokens")
        self._sink.tell("report")
        self._sink.wait("report")
        # a first mail may be there before this process goes on
        begun = [max(at, began) for at, _ in json.loads(self._file.read_text()) if at >= before]
        if run.rate:
            time.sleep(1 / run.rate)  # so that the first mail of the next burst is allowed
        return begun[0] - began, begun[-1] - began, collected


def measure(run: Run, server: Server, directory: Path, commands: Path) -> Outcome:
    """Do one run. Raises HelperError, DaemonError, OSError, psycopg.Error."""
    folder = directory / run.name.replace("/", "-").replace(" ", "-")
    folder.mkdir()
    line = Line(run, server, folder, commands)
    try:
        bursts = [line.burst(number) for number in range(run.bursts)]
    finally:
        line.close()
    collected = [times for _, _, times in bursts]
    everything = sorted(at for times in collected for at in times)
    shares = [share for times in collected if (share := _share(run, times)) is not None]
    return Outcome(
        run, [first for first, _, _ in bursts], [last for _, last, _ in bursts],
        most_in(everything, run.window), median(shares) if shares else None, len(everything),
    )  # fmt: skip


def _share(run: Run, times: Sequence[float]) -> float | None:
    """Return the share of the rate between the first and the last token of a burst."""
    if not run.rate or times[-1] - times[0] < 10 / run.rate:
        return None
    return sum(at < times[-1] for at in times) / (times[-1] - times[0]) / run.rate


def runs() -> list[Run]:
    """Return all runs."""
    found = []
    for burst, rate, processes in product(BURSTS, RATES, PROCESS_NUMBERS):
        slow = rate is not None and rate < 1
        bursts = {1: 15 if slow else 100, 100: 2 if slow else 10, 10_000: 2}[burst]
        found.append(Run(burst, rate, processes, bursts, 30.0))
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table of all runs."""
    rows = [["", "first p50", "p99", "last p99", "most", "allowed", "share", "mails"]]
    return aligned([*rows, *map(_row, outcomes)])


def _row(one: Outcome) -> list[str]:
    return [
        one.run.name,
        f"{percentile(one.first, 0.5):.3f} s", f"{percentile(one.first, 0.99):.3f} s",
        f"{percentile(one.last, 0.99):.2f} s",
        str(one.most), str(one.allowed or "-"),
        "-" if one.share is None else f"{one.share:.3f}", str(one.mails),
    ]  # fmt: skip


@relay_options("uri", "commands", "keep")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--only", multiple=True, help="Only runs whose name has this text; repeatable.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    only: tuple[str, ...], json_: bool, uri: str | None, commands: Path | None, keep: bool
) -> None:
    """Read the options, run, show."""
    outcomes = []
    with failing():
        directory, server, about = opened(uri, keep, what=f"{hardware()}; ")
        for run in runs():
            if not only or any(text in run.name for text in only):
                log(run.name)
                outcomes.append(measure(run, server, directory, commands_of(commands)))
                log(aligned([_row(outcomes[-1])]))
    if json_:
        found = [{"name": one.run.name, "first": list(one.first), "last": list(one.last),
                  "most": one.most, "share": one.share} for one in outcomes]  # fmt: skip
        click.echo(dump({"about": about, "runs": found}))
    else:
        click.echo(f"{about}\n\n{table(outcomes)}\n")
    finish([], [miss for one in outcomes for miss in one.misses()])


if __name__ == "__main__":
    main()
