"""The command bench/apart: producer, consumer and database in three network namespaces."""

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from psycopg.conninfo import conninfo_to_dict

from bench.columns import aligned, cells, number, spread
from bench.helper import Helper
from bench.namespaces import PROGRAMS, Namespaces, possible
from bench.options import (
    EXIT_CODES_HELP,
    HELP_SETTINGS,
    failing,
    finish,
    hardware,
    opened,
    relay_options,
)
from bench.phases import Result
from bench.progress import log
from bench.report import as_json
from bench.workload import MEASURES, PHASES, RATE_FIGURE, Site, Sizes, Workload

ABOUT = f"""Compare producer and consumer on one host with the same across a network.

The producer is a process with pgmta.Client. A mail goes to one address, a copy to a second one, and
a hidden copy to the same second one. The consumer is the worker of queued, in --workers processes,
with its claims, leases, settlements and log of attempts. Only its transport is replaced, by one
that takes all mail at once. Every measure has a fresh database.

Across means: producer, consumer and database are in three network namespaces, with links between
them. A TCP proxy at the database hands the octets of both directions on after --delay. Without
root, or without iproute2, only the proxy is between them. Both sides alternate, and ratios are
within a run. {EXIT_CODES_HELP}the median of a ratio is below --least."""
MIN_RATIO = 0.5
SEND_FIGURES = ("send ms p50", "p99")


def across(uri: str, address: str, port: int) -> str:
    """Return the URI of the same database at another address, without TLS."""
    parts = {name: str(value) for name, value in conninfo_to_dict(uri).items()}
    secret = f":{quote(parts['password'], safe='')}" if "password" in parts else ""
    login = f"{quote(parts.get('user', ''), safe='')}{secret}"
    return f"postgresql://{login}@{address}:{port}/{parts['dbname']}?sslmode=disable"


@contextlib.contextmanager
def network(uri: str, delay: float, directory: Path) -> Iterator[tuple[Site, str]]:
    """Give the site across the network, and the words that name the means.

    Raises OSError, HelperError.
    """
    with contextlib.ExitStack() as stack:
        spaces = stack.enter_context(Namespaces()) if possible() else None
        addresses = spaces.addresses if spaces else dict.fromkeys(PROGRAMS, "127.0.0.1")
        parts = conninfo_to_dict(uri)
        host = str(parts.get("host") or "127.0.0.1")
        config = {
            "addresses": list(addresses.values()),
            "namespace": spaces.database if spaces else "",
            "upstream": [host, str(parts.get("port") or 5432)],
            "delay": delay,
        }
        proxy = Helper("delay_line", config, directory / "delay_line.log")
        stack.callback(proxy.close)
        ports = dict(zip(addresses, proxy.wait("ready")["ports"], strict=True))
        where = "three network namespaces" if spaces else "one network namespace"
        site = Site(
            spaces.words if spaces else lambda who: (),
            lambda who, uri: across(uri, addresses[who], ports[who]),
        )
        yield site, f"{where}, a TCP proxy with {delay * 1000:g} ms per direction"


def of_phase(found: Sequence[Result], name: str, figure: str) -> list[float]:
    """Return a figure of a measure from all runs that have it."""
    return [one.figures[figure] for one in found if one.phase == name and figure in one.figures]


def table(here: Sequence[Result], there: Sequence[Result], least: float) -> str:
    """Return the table of rates, ratios, and times of a send."""
    rows = [["", "on one host", "across", "ratio min", "median", "max", "least"]]
    for name in dict.fromkeys(one.phase for one in here):
        for figure in (RATE_FIGURE, "to the last outcome, mails/s", *SEND_FIGURES):
            values = [of_phase(found, name, figure) for found in (here, there)]
            if not values[0] or (name == "lone" and figure == RATE_FIGURE):
                continue
            limit = number(least) if figure == RATE_FIGURE else ""
            ratios = [theirs / ours for ours, theirs in zip(*values, strict=True)]
            medians = [number(statistics.median(each)) for each in values]
            rows.append([f"{name}, {figure}", *medians, *cells(spread(ratios)), limit])
    return aligned(rows, 7)


def misses(here: Sequence[Result], there: Sequence[Result], least: float) -> list[str]:
    """Return the measures whose rate falls by more than allowed."""
    missed = []
    for name in dict.fromkeys(one.phase for one in here):
        pairs = zip(
            of_phase(here, name, RATE_FIGURE), of_phase(there, name, RATE_FIGURE), strict=True
        )
        ratios = [theirs / ours for ours, theirs in pairs]
        if ratios and (ratio := statistics.median(ratios)) < least:
            missed.append(f"{name}: {ratio:.2f} of the rate on one host, limit {least:g}")
    return missed


@relay_options("uri", "stall")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option(
    "--delay", default=1.0, type=click.FloatRange(0), help="Milliseconds of each direction."
)
@click.option("--least", default=MIN_RATIO, help="Limit: the rate across, to that on one host.")
@click.option("--batch", default=5000, type=click.IntRange(1), help="Mails of a batch.")
@click.option(
    "--messages", default=20_000, type=click.IntRange(1), help="Mails consumed, or of tasks."
)
@click.option("--lone", default=1000, type=click.IntRange(1), help="Mails sent alone.")
@click.option("--workers", default=2, type=click.IntRange(1), help="Processes of the consumer.")
@click.option(
    "--measure", "names", multiple=True, type=click.Choice(list(MEASURES)), help="Only these."
)
@click.option("--runs", default=5, type=click.IntRange(1), help="Repeat; shows min, median, max.")
@click.option("--limits/--no-limits", default=True, help="Whether --least can be missed.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    delay: float,
    least: float,
    batch: int,
    messages: int,
    lone: int,
    workers: int,
    names: tuple[str, ...],
    runs: int,
    limits: bool,
    json_: bool,
    uri: str | None,
    stall: float,
) -> None:
    """Read the options, run, show."""
    sizes = Sizes(batch, messages, lone, workers)
    chosen = names or tuple(MEASURES)
    here: list[Result] = []
    there: list[Result] = []
    with failing(), contextlib.ExitStack() as stack:
        directory, server, about = opened(uri, what=f"{sizes}; {hardware()}; ")
        site, means = stack.enter_context(network(server.uri, delay / 1000, directory))
        about = f"{means}; {about}"
        log(means)
        sides = [
            (here, Workload(server, directory, sizes, stall)),
            (there, Workload(server, directory, sizes, stall, site)),
        ]
        for turn in range(runs):
            log(f"run {turn + 1} of {runs}")
            for place, name in enumerate(chosen):
                for found, work in sides if (turn + place) % 2 == 0 else reversed(sides):
                    found.append(work.measure(name))
    if json_:
        settings: dict[str, Any] = {"about": about, **vars(sizes), "delay": delay, "means": means}
        marked = [
            Result(f"{one.phase}, {side}", one.figures, one.problems)
            for side, found in (("one host", here), ("across", there))
            for one in found
        ]
        click.echo(as_json(settings, marked))
    else:
        meaning = "\n".join([*(f"{name}: {MEASURES[name]}." for name in chosen), PHASES])
        click.echo("\n\n".join([about, table(here, there, least), meaning]) + "\n")
    finish(
        [f"{one.phase}: {problem}" for one in (*here, *there) for problem in one.problems],
        misses(here, there, least) if limits else [],
    )
