"""The command bench/hostile: what hostile clients and next hops do to the mail of others."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import yaml

from bench.columns import aligned, number
from bench.hostile_clients import ATTACKS
from bench.hostile_hops import HOPS
from bench.hostile_run import Outcome, Run, Settings
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.progress import log

EVERY = {name: each.about for name, each in ATTACKS.items()} | HOPS
ABOUT = f"""Measure what hostile clients and next hops do to the mail of others.

For each attack: a fresh database, normal mail and probe mails without it, beside it, and without
it again. {EXIT}others were too slow beside an attack."""
MEMORY = {
    "crowd-idle": ("beside largest process MB smtpd", 200.0),
    "crowd-tls": ("beside largest process MB smtpd", 400.0),
}
"""Figures that an attack bounds, and their limits."""
COLUMNS = (
    ("mails/s", "before", "before mails/s"),
    ("", "beside", "beside mails/s"),
    ("", "ratio", "ratio"),
    ("probe ms before", "p50", "before accept ms p50"),
    ("", "p99", "before accept ms p99"),
    ("", "max", "before accept ms max"),
    ("beside", "p50", "beside accept ms p50"),
    ("", "p99", "beside accept ms p99"),
    ("", "max", "beside accept ms max"),
    ("next hop", "p99", "beside delivery ms p99"),
    ("probes", "failed", "probes failed"),
    ("CPU s", "smtpd", "beside CPU smtpd"),
    ("", "queued", "beside CPU queued"),
    ("", "attack", "beside CPU attackers"),
    ("MB before", "smtpd", "before peak MB smtpd"),
    ("", "queued", "before peak MB queued"),
    ("MB beside", "smtpd", "beside peak MB smtpd"),
    ("", "queued", "beside peak MB queued"),
    ("recovery", "s", "recovery s"),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the aligned table: a row for each attack."""
    rows = [["", *(top for top, _, _ in COLUMNS), "once"]]
    rows.append(["attack", *(name for _, name, _ in COLUMNS), "each"])
    for outcome in outcomes:
        found = [outcome.figures.get(figure) for _, _, figure in COLUMNS]
        cells = ["-" if value is None else number(round(value, 2)) for value in found]
        rows.append([outcome.attack, *cells, "NO" if outcome.problems else "yes"])
    return aligned(rows)


def misses(outcomes: Sequence[Outcome], least: float, longest: float) -> list[str]:
    """Return which limits others' mail did not keep beside an attack."""
    found = []
    for outcome in outcomes:
        figures = outcome.figures
        if "ratio" not in figures:
            found.append(f"{outcome.attack}: not measured")
            continue
        if figures["ratio"] < least:
            found.append(f"{outcome.attack}: others at {figures['ratio']:.2f}, limit {least:g}")
        if (p99 := figures["beside accept ms p99"]) > longest:
            found.append(f"{outcome.attack}: others' p99 {p99:.0f} ms, limit {longest:g} ms")
        name, most = MEMORY.get(outcome.attack, ("", 0.0))
        if figures.get(name, 0.0) > most:
            found.append(f"{outcome.attack}: {name[7:]} is {figures[name]:.0f}, limit {most:g}")
        if failed := figures["probes failed"]:
            found.append(f"{outcome.attack}: {failed:g} probes turned away")
    return found


def _show(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(aligned([[name, about] for name, about in EVERY.items()]))
        context.exit()


@relay_options("sessions", "size", "rate", "processes", "uri", "commands")
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_show,
              help="Name the attacks.")  # fmt: skip
@click.option("--attack", "names", multiple=True, type=click.Choice(list(EVERY)),
              help="Only this one; repeatable  [default: all]")  # fmt: skip
@click.option("--clients", default=50, type=click.IntRange(1), help="Hostile clients at once.")
@click.option("--seconds", default=5.0, help="Of each window.")
@click.option("--source", default="strangers", type=click.Choice(["strangers", "one", "trusted"]),
              help="An address each, one for all, or 127.0.0.1, which may relay.")  # fmt: skip
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="YAML to be merged into smtpd's.")  # fmt: skip
@click.option("--mbit", default=0.0, help="Bandwidth of all clients; 0: as fast as it is taken.")
@click.option(
    "--messages", default=400_000, type=click.IntRange(1), help="At most this many normal mails."
)
@click.option("--patience", default=30.0, help="Seconds for others to be served again after it.")
@click.option("--least", default=0.80, help="The others' rate beside an attack, as a ratio.")
@click.option("--longest", default=50.0, help="Milliseconds: the p99 of probes beside an attack.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    names: tuple[str, ...],
    config: Path | None,
    least: float,
    longest: float,
    json_: bool,
    uri: str | None,
    commands: Path | None,
    **rest: Any,
) -> None:
    """Read the options, run, show."""
    extra = yaml.safe_load(config.read_text()) if config else None
    settings = Settings(commands=commands_of(commands), smtpd=extra or {}, **rest)
    outcomes: list[Outcome] = []
    with failing():
        clients = f"{settings.clients} clients ({settings.source})"
        directory, server, about = opened(
            uri, what=f"{clients}, windows of {settings.seconds:g} s; "
        )
        for name in names or EVERY:
            outcomes.append(Run(name, settings, directory, server).go())
            log(table(outcomes[-1:]))
    if json_:
        options = asdict(settings) | {"commands": str(settings.commands), "about": about}
        click.echo(dump({"settings": options, "attacks": [asdict(each) for each in outcomes]}))
    else:
        click.echo(f"{about}\n\n{table(outcomes)}\n")
    for outcome in outcomes:
        for note in outcome.notes:
            log(f"note, {outcome.attack}: {note}")
    problems = [f"{each.attack}: {text}" for each in outcomes for text in each.problems]
    finish(problems, misses(outcomes, least, longest))
