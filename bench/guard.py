"""The command bench/guard: CPU per message, beside another checkout, list or stored baseline."""

import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from bench.burst import STAGES, Burst
from bench.columns import aligned, number
from bench.database import Server
from bench.options import FAILED, HELP_SETTINGS, commands_of, failing, finish, opened
from bench.progress import log

BASELINE = Path(__file__).parent / "baseline.json"
HOOK = "bench.rcpt_hook:Handler"
MIN_HOOK_RATIO = 0.65
MAX_RATIOS = {"submit": 1.15}
"""Limits of single stages beside another checkout; 1.05 elsewhere."""


def calibrate() -> float:
    """Return the CPU seconds of fixed work of the same kind: bytes, regular expressions, dicts."""
    text = b"Received: from a.example\r\n" * 40 + b"\r\n" + b"x" * 3000
    pattern = re.compile(rb"^received:", re.IGNORECASE | re.MULTILINE)
    started = time.process_time()
    seen: dict[int, bytes] = {}
    for turn in range(3000):
        pattern.findall(text)
        seen[turn % 500] = text[turn % 100 :].replace(b"\r\n.", b"\r\n")
        text.find(b"\r\n.\r\n")
        f"{turn}@example.org".rpartition("@")
    return time.process_time() - started


def alternate(
    name: str, first: Callable[[], float], second: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """Call both in turn, in alternating order; the first pair warms up and counts for nothing."""
    found = []
    log(f"{name}: {pairs} pairs of bursts")
    for turn in range(pairs + 1):
        if turn % 2:
            other, own = second(), first()
        else:
            own, other = first(), second()
        if turn:
            found.append((own, other))
    return found


def _rate(burst: Burst) -> float:
    burst.run()
    return burst.messages / burst.seconds


@dataclass(frozen=True)
class Measured:
    """The costs of a stage in pairs: ours, and that of the other."""

    name: str
    costs: list[tuple[float, float]]

    def ratios(self, divisor: float = 1.0) -> list[float]:
        """Return the ratio of each pair."""
        return [own / other / divisor for own, other in self.costs]

    def interval(self, divisor: float) -> tuple[float, float]:
        """Return between which ratios the true median is, with a probability of 95 %."""
        ratios = sorted(self.ratios(divisor))
        # ranks around the median, by the binomial distribution
        beside = 0.98 * math.sqrt(len(ratios))
        middle = (len(ratios) - 1) / 2
        low, high = math.floor(middle - beside), math.ceil(middle + beside)
        return ratios[max(0, low)], ratios[min(len(ratios) - 1, high)]

    def row(self, divisor: float) -> list[str]:
        """Return the cells of the table: medians in µs, or messages/s; the ratio; its interval."""
        each = (statistics.median(column) for column in zip(*self.costs, strict=True))
        own, other = (one if self.name == "hook" else one * 1e6 for one in each)
        low, high = self.interval(divisor)
        figures = (statistics.median(self.ratios(divisor)), low, high)
        return [self.name, number(own), number(other), *(f"{figure:.3f}" for figure in figures)]

    def missed(self, divisor: float, most: float) -> str:
        """Return that the limit is missed, or nothing. Says so when the interval decides nothing.

        The rate with a hook has MIN_HOOK_RATIO as its limit, instead of `most`.
        """
        low, high = self.interval(divisor)
        if self.name == "hook":
            most, low, high = -MIN_HOOK_RATIO, -high, -low
        if low <= most < high:
            log(f"UNDECIDED: {self.name}, the limit {abs(most):g} is within the interval")
        return f"{self.name} is beyond its limit {abs(most):g}" if low > most else ""


@dataclass(frozen=True)
class Guard:
    """Measures stages of this checkout and, if there is one, of another."""

    against: Path | None
    pairs: int
    directory: Path
    server: Server
    suppressed: int = 0

    def measure(self, name: str) -> Measured:
        """Measure one stage. Raises one of FAILURES."""
        here = commands_of(None)
        with ExitStack() as stack:

            def start(commands: Path, hook: str = "", suppressed: int = 0) -> Burst:
                burst = Burst(name, commands, self.server, self.directory, hook, suppressed)
                return stack.enter_context(burst)

            if name == "hook":
                with_hook, without = start(here, HOOK), start(here)
                rates = (lambda: _rate(with_hook), lambda: _rate(without))
                return Measured(name, alternate(name, *rates, self.pairs))
            own = start(here, suppressed=self.suppressed).run
            if self.suppressed:
                return Measured(name, alternate(name, own, start(here).run, self.pairs))
            other = start(self.against / ".venv" / "bin").run if self.against else calibrate
            return Measured(name, alternate(name, own, other, self.pairs))


@click.command(context_settings=HELP_SETTINGS)
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Another checkout with its .venv, instead of the baseline.")  # fmt: skip
@click.option(
    "--suppressed",
    default=0,
    type=click.IntRange(0),
    help="Another list of suppressions: so many, beside an empty one.",
)
@click.option("--stage", "names", multiple=True, type=click.Choice(list(STAGES)),
              help="Only this one; repeatable  [default: all]")  # fmt: skip
@click.option("--pairs", default=25, type=click.IntRange(1), help="Pairs of bursts; the median.")
@click.option("--limit", type=float,
              help="Times the CPU that it may cost  [default: 1.6, or 1.05]")  # fmt: skip
@click.option("--update", is_flag=True, help="Store the measured figures as the baseline.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    against: Path | None,
    suppressed: int,
    names: tuple[str, ...],
    pairs: int,
    limit: float | None,
    update: bool,
    json_: bool,
) -> None:
    """Compare the CPU that a message costs in each stage: bursts in alternating pairs.

    The other of a pair is the same burst through another checkout; without one it is a loop of
    fixed work, so that the stored baseline holds on another machine. With --suppressed it is the
    same burst beside an empty list of suppressions. "hook" compares the rates of
    smtpd with and without a handle_RCPT that awaits nothing. A limit is missed when
    the interval of the ratio (95 %) is beyond it. Exit code: 0 all well; 2 could not run; 3 a
    limit was missed.
    """
    if against and not (against / ".venv").is_dir():
        log(f"{against} has no .venv: run `make .venv/.dev` there")
        sys.exit(FAILED)
    other = "other" if against else "empty" if suppressed else "loop"
    beside = bool(against or suppressed)
    rows = [["stage", "µs/message", other, "ratio", "from", "to"]]
    ratios: dict[str, float] = {}
    misses = []
    baseline: dict[str, float] = {} if beside else json.loads(BASELINE.read_text())
    with failing():
        directory, server, _ = opened(None, what="")
        guard = Guard(against and against.resolve(), pairs, directory, server, suppressed)
        for name in names or STAGES:
            found = guard.measure(name)
            ratios[name] = statistics.median(found.ratios())
            divisor = baseline.get(name, 1.0)
            most = limit or (MAX_RATIOS.get(name, 1.05) if beside else 1.6)
            misses.append(found.missed(divisor, most))
            rows.append(found.row(divisor))
            log("  ".join(rows[-1]))  # so that an interrupted run is not lost
            if not (beside or update or name in baseline or name == "hook"):
                misses.append(f"{name} has no baseline: bench/guard --update")
    if json_:
        click.echo(json.dumps(ratios, indent=2))
    else:
        click.echo(aligned(rows))
    if update and not beside:
        kept = {name: round(ratio, 7) for name, ratio in ratios.items() if name != "hook"}
        BASELINE.write_text(json.dumps(baseline | kept, indent=2) + "\n")
        sys.exit(0)
    finish([], [miss for miss in misses if miss])
