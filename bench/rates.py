"""The command bench/rates: whether rates hold at the next hop, and how much of them is used."""

import os
from dataclasses import asdict
from itertools import groupby, product
from pathlib import Path

import click

from bench.columns import aligned
from bench.database import Server, open_server
from bench.namespaces import possible
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
    workplace,
)
from bench.peer.package import Unavailable
from bench.peer.slow_sync import VARIABLE, slow_sync
from bench.progress import log
from bench.rate_run import (
    BUSY,
    BUSY_PROCESSES,
    CLOCK_ERRORS_S,
    CONDITIONS,
    FAULTS,
    LOOKS_PER_S,
    QUIET_S,
    ROUTE_FACTOR,
    SLOW_SYNC,
    SLOW_SYNC_MS,
    STOPPED_S,
    TWO_RATES,
    Outcome,
    Run,
    measure,
)

PROCESS_NUMBERS = (1, 3, 8)
RUNS = [
    *(
        Run(rate, processes, fault)
        for rate, fault, processes in product(
            (50.0, 500.0), ("", *FAULTS, "jobs", TWO_RATES), PROCESS_NUMBERS
        )
    ),
    *(Run(rate, 8, "rivals") for rate in (50.0, 200.0)),
    *(
        Run(rate, processes, fault)
        for rate, fault, processes in product((50.0, 500.0), CONDITIONS, (1, 3))
    ),
    *(
        Run(rate, processes, fault, route=True, seconds=seconds)
        for (rate, seconds), fault, processes in product(
            ((1000.0, 30.0), (10 / 60, 90.0)), ("", *FAULTS), PROCESS_NUMBERS
        )
    ),
]
ABOUT = f"""Measure whether rates hold at a next hop, and how much of them is used.

A campaign, or plain mail by a route, has a rate. Its queued processes are in two network namespaces
and a next hop in a third one notes the time of each MAIL. "most" is the largest number in a window
of a second, or of a minute for less than one per second. "stop" is a SIGSTOP of {STOPPED_S:g} s
after {QUIET_S:g} s, "restart" a SIGTERM and a SIGKILL of two processes, which start again, "jobs"
two jobs of the campaign, and with "clock" three clocks are
{", ".join(f"{c:+d}" for c in CLOCK_ERRORS_S)} s wrong. With "{TWO_RATES}" the route of the
campaign has a rate, too, {ROUTE_FACTOR} times as high.
"rivals" are two campaigns with one credential, beside one with another credential, whose share
counts, and {LOOKS_PER_S} looks a second at the jobs and the queue. Milliseconds are round trips to
PostgreSQL. "{SLOW_SYNC}" is a disk whose syncs take {SLOW_SYNC_MS} ms longer (needs cc), "{BUSY}" a
host of queued and PostgreSQL where {BUSY_PROCESSES} other processes are busy. Needs root,
iproute2 and libfaketime. {EXIT_CODES_HELP}a window has more than the rate, or
without an interruption less than 0.9 of it is used, with 8 processes 0.8, 0.95 beside rivals,
0.85 at 50 ms and with a slow sync, and 0.7 if busy. Other work delays it; `chrt -r 1` before the
command helps."""


def table(outcomes: list[Outcome]) -> str:
    """Return the table of all runs: a line for each kind, with the figures by processes."""
    rows = [
        ["", "processes", "allowed", "most", "of the rate", "least", "mails", "lost", "connections"]
    ]
    for _, group in groupby(outcomes, lambda one: (one.run.kind, one.run.fault)):
        ones = list(group)
        columns = [[one.run.kind] for one in ones[:1]]
        columns += [[str(one.run.processes) for one in ones], [f"{ones[0].allowed:g}"]]
        columns += [[str(one.most) for one in ones], [f"{one.share:.3f}" for one in ones]]
        columns += [[f"{one.least:g}" for one in ones if one.least]]
        columns += [[str(one.sent) for one in ones], [str(one.lost) for one in ones]]
        columns += [[str(one.connections) for one in ones]]
        rows.append([", ".join(column) for column in columns])
    looks = [f"{one.run.name}: {one.looks}" for one in outcomes if one.looks]
    return "\n\n".join([aligned(rows), *looks])


@relay_options("uri")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--only", multiple=True, help="Only runs whose name has this text; repeatable.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(only: tuple[str, ...], json_: bool, uri: str | None) -> None:
    """Read the options, run, show."""
    runs = [run for run in RUNS if not only or any(text in run.name for text in only)]
    outcomes = []
    slow: tuple[Path, Server] | None = None
    with failing(Unavailable):
        if not possible():
            raise OSError("it needs root and iproute2")
        directory, server, about = opened(uri, what=f"{hardware()}; ")
        for run in runs:
            log(run.name)
            if run.fault == SLOW_SYNC:
                place, used = slow = slow or _slow_server()
            else:
                place, used = directory, server
            outcomes.append(measure(run, used, place, commands_of(None)))
    if json_:
        found = [{"name": one.run.name, **asdict(one)} for one in outcomes]
        click.echo(dump({"about": about, "runs": found}))
    else:
        click.echo(f"{about}\n\n{table(outcomes)}\n")
    finish([], [miss for one in outcomes for miss in one.misses()])


def _slow_server() -> tuple[Path, Server]:
    """Start a server each of whose syncs takes SLOW_SYNC_MS longer. Raises Unavailable."""
    directory = workplace(keep=False)
    slow_sync(SLOW_SYNC_MS, directory)
    try:
        return directory, open_server(None, directory)
    finally:
        del os.environ[VARIABLE]  # so that other programs do not inherit it


if __name__ == "__main__":
    main()
