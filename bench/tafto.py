"""The command bench/tafto: the work of a published benchmark, with the client and the worker."""

import difflib
import statistics
from collections.abc import Sequence
from typing import Any

import click

from bench.columns import aligned, cells, number, spread
from bench.options import EXIT, HELP, failing, finish, hardware, opened, relay_options
from bench.phases import Result
from bench.progress import log
from bench.report import as_json
from bench.workload import MEASURES, PHASES, RATE, Sizes, Workload

ABOUT = f"""Do the work of tafto's published benchmark with pgmta's client and worker.

A mail goes to one address, a copy to a second one, and a hidden copy to the same second one. The
producer is a process with pgmta.Client. The consumer is the worker of queued, in --workers
processes, with its claims, leases, settlements and log of attempts. Only its transport is replaced,
by one that takes all mail at once. Every measure has a fresh database. {EXIT}a median missed its
aim."""

SIZES = (
    click.Option(["--batch"], default=5000, type=click.IntRange(1), help="Mails of a batch."),
    click.Option(
        ["--messages"], default=20_000, type=click.IntRange(1), help="Mails consumed, or of tasks."
    ),
    click.Option(["--lone"], default=1000, type=click.IntRange(1), help="Mails sent alone."),
    click.Option(
        ["--workers"], default=2, type=click.IntRange(1), help="Processes of the consumer."
    ),
    click.Option(
        ["--measure", "names"], multiple=True, type=click.Choice(list(MEASURES)), help="Only these."
    ),
    click.Option(
        ["--runs"], default=5, type=click.IntRange(1), help="Repeat; shows min, median, max."
    ),
    click.Option(["--limits/--no-limits"], default=True, help="Whether an aim can be missed."),
    click.Option(["--json", "json_"], is_flag=True, help="Print JSON."),
)
"""Options that bench/apart has too."""

CPU = [f"CPU µs/mail, {who}" for who in ("producer", "PostgreSQL", "consumer")]


def aims(_: click.Context, option: click.Parameter, values: Sequence[str]) -> dict[str, float]:
    """Return the aims by measure, as given. Raises BadParameter."""
    found = {name: measure.aim for name, measure in MEASURES.items()}
    for value in values:
        name, _sign, text = value.partition("=")
        if name not in found:
            near = difflib.get_close_matches(name, found, 1, 0.0)[0]
            raise click.BadParameter(f"no measure {name!r}; did you mean {near!r}?", param=option)
        try:
            found[name] = float(text)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not NAME=NUMBER", param=option) from None
    return found


def of_phase(found: Sequence[Result], name: str, figure: str) -> list[float]:
    """Return a figure of a measure from all runs that have it."""
    return [one.figures[figure] for one in found if one.phase == name and figure in one.figures]


def _middle(found: Sequence[Result], name: str, figure: str) -> str:
    values = of_phase(found, name, figure)
    return number(statistics.median(values)) if values else "-"


def rates(found: Sequence[Result], wanted: dict[str, float]) -> str:
    """Return the table of the figures that have aims."""
    rows = [["", "rows per mail", "min", "median", "max", "aim", "to published"]]
    for name in dict.fromkeys(one.phase for one in found):
        measure = MEASURES[name]
        values = of_phase(found, name, measure.figure)
        times = statistics.median(values) / measure.published if measure.published else None
        unit = "" if measure.figure == RATE else f", send {measure.figure}"
        rows.append([
            f"{name}{unit or ', ' + RATE}", _middle(found, name, "rows per mail"),
            *cells(spread(values)), f"{'≤' if measure.most else '≥'} {number(wanted[name])}",
            f"{times:.2f}" if times else "-",
        ])  # fmt: skip
    return aligned(rows, 7)


def costs(found: Sequence[Result]) -> str:
    """Return the table of the other figures, as medians."""
    shown = {RATE, "rows per mail", *(measure.figure for measure in MEASURES.values())}
    names = list(dict.fromkeys(name for one in found for name in one.figures if name not in shown))
    names.sort(key=lambda name: name in CPU)
    phases = list(dict.fromkeys(one.phase for one in found))
    rows = [["medians", *phases]]
    rows += [[name, *(_middle(found, phase, name) for phase in phases)] for name in names]
    return aligned(rows, 7)


def misses(found: Sequence[Result], wanted: dict[str, float]) -> list[str]:
    """Return the measures whose medians missed their aims."""
    missed = []
    for name in dict.fromkeys(one.phase for one in found):
        measure = MEASURES[name]
        value = statistics.median(of_phase(found, name, measure.figure))
        if value > wanted[name] if measure.most else value < wanted[name]:
            missed.append(f"{name}: {value:.4g} {measure.figure}, aim {wanted[name]:g}")
    return missed


def explanation(names: Sequence[str]) -> str:
    """Return what each measure does, and the phases."""
    lines = [f"{name}: {MEASURES[name].about}." for name in names]
    return "\n".join([*lines, PHASES])


@relay_options("uri", "stall")
@click.command(context_settings=HELP, help=ABOUT)
@click.option(
    "--aim", "wanted", multiple=True, callback=aims, metavar="NAME=NUMBER",
    help="An aim; without it: " + ", ".join(f"{n}={m.aim:g}" for n, m in MEASURES.items()),
)  # fmt: skip
def main(
    batch: int,
    messages: int,
    lone: int,
    workers: int,
    names: tuple[str, ...],
    runs: int,
    limits: bool,
    json_: bool,
    wanted: dict[str, float],
    uri: str | None,
    stall: float,
) -> None:
    """Read the options, run, show."""
    sizes = Sizes(batch, messages, lone, workers)
    chosen = names or tuple(MEASURES)
    found: list[Result] = []
    with failing():
        directory, server, about = opened(uri, what=f"{sizes}; {hardware()}; ")
        work = Workload(server, directory, sizes, stall)
        for turn in range(runs):
            log(f"run {turn + 1} of {runs}")
            found += [work.measure(name) for name in chosen]
    if json_:
        settings: dict[str, Any] = {"about": about, **vars(sizes), "aims": wanted}
        click.echo(as_json(settings, found))
    else:
        shown = [about, rates(found, wanted), costs(found), explanation(chosen)]
        click.echo("\n\n".join(shown) + "\n")
    finish(
        [f"{one.phase}: {problem}" for one in found for problem in one.problems],
        misses(found, wanted) if limits else [],
    )


main.params += SIZES
