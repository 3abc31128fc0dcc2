"""The command bench/rates: whether rates hold at the next hop, and how much of them is used."""

import click

from bench.columns import aligned
from bench.namespaces import possible
from bench.options import (
    EXIT,
    HELP,
    commands_of,
    dump,
    failing,
    finish,
    hardware,
    opened,
    relay_options,
)
from bench.progress import log
from bench.rate_run import CLOCKS, QUIET, STOPPED, Outcome, Run, measure

RUNS = [
    *(Run(rate, processes) for rate in (50.0, 500.0) for processes in (1, 3, 8)),
    *(
        Run(rate, 3, fault)
        for rate in (50.0, 500.0)
        for fault in ("stop", "clock", "restart", "jobs")
    ),
    *(Run(10 / 60, processes, route=True, seconds=90.0) for processes in (1, 3, 8)),
    *(Run(1000.0, processes, route=True) for processes in (1, 3, 8)),
    *(Run(rate, 3, fault, route=True) for rate in (50.0, 1000.0) for fault in ("stop", "restart")),
]
ABOUT = f"""Measure whether rates hold at a next hop, and how much of them is used.

A campaign, or plain mail by a route, has a rate. Its queued processes are in two network namespaces
and a next hop in a third one notes the time of each MAIL. "most" is the largest number in a window
of a second, or of a minute for less than one per second. "stop" is a SIGSTOP of {STOPPED:g} s after
{QUIET:g} s, "restart" a SIGTERM and a SIGKILL of two processes, which start again, "jobs" two jobs
of the campaign, and with "clock" three clocks are {", ".join(f"{c:+d}" for c in CLOCKS)} s wrong.
Needs root, iproute2 and libfaketime. {EXIT}a window has more than the rate, or without a fault less
than 0.9 of it is used, with 8 processes 0.8."""


def table(outcomes: list[Outcome]) -> str:
    """Return the table of all runs."""
    rows = [["", "allowed", "most", "of the rate", "least", "mails", "connections"]]
    for one in outcomes:
        least = f"{one.least:g}" if one.least else ""
        rows.append([one.run.name, f"{one.allowed:g}", str(one.most), f"{one.share:.3f}", least,
                     str(one.sent), str(one.connections)])  # fmt: skip
    return aligned(rows)


@relay_options("uri")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--only", multiple=True, help="Only runs whose name has this text; repeatable.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(only: tuple[str, ...], json_: bool, uri: str | None) -> None:
    """Read the options, run, show."""
    runs = [run for run in RUNS if not only or any(text in run.name for text in only)]
    outcomes = []
    with failing():
        if not possible():
            raise OSError("it needs root and iproute2")
        directory, server, about = opened(uri, what=f"{hardware()}; ")
        for run in runs:
            log(run.name)
            outcomes.append(measure(run, server, directory, commands_of(None)))
    if json_:
        found = [{"name": one.run.name, **vars(one), "run": vars(one.run)} for one in outcomes]
        click.echo(dump({"about": about, "runs": found}))
    else:
        click.echo(f"{about}\n\n{table(outcomes)}\n")
    finish([], [miss for one in outcomes for miss in one.misses()])


if __name__ == "__main__":
    main()
