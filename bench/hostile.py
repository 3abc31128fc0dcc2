"""The command bench/hostile: what hostile clients and next hops do to the mail of others."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.columns import aligned
from bench.hostile_clients import ATTACKS
from bench.hostile_hops import HOPS
from bench.hostile_run import Run, Settings
from bench.options import (
    EXIT_CODES_HELP,
    HELP_SETTINGS,
    commands_of,
    failing,
    finish,
    opened,
    relay_options,
)
from bench.phases import Result
from bench.progress import log
from bench.report import as_json, table

EVERY = {name: each.about for name, each in ATTACKS.items()} | HOPS
ABOUT = f"""Measure what hostile clients and next hops do to the mail of others.

For each attack: a fresh database, normal mail and probe mails without it, beside it, and without
it again. {EXIT_CODES_HELP}others were too slow beside an attack."""
MEMORY_LIMITS = {
    "crowd-idle": ("beside largest process MB smtpd", 200.0),
    "crowd-tls": ("beside largest process MB smtpd", 400.0),
}
"""Figures that an attack bounds, and their limits."""


def misses(outcomes: Sequence[Result], least: float, longest: float) -> list[str]:
    """Return which limits others' mail did not keep beside an attack."""
    found = []
    for outcome in outcomes:
        figures = outcome.figures
        if "ratio" not in figures:
            found.append(f"{outcome.phase}: not measured")
            continue
        if figures["ratio"] < least:
            found.append(f"{outcome.phase}: others at {figures['ratio']:.2f}, limit {least:g}")
        if (p99 := figures["beside accept ms p99"]) > longest:
            found.append(f"{outcome.phase}: others' p99 {p99:.0f} ms, limit {longest:g} ms")
        name, most = MEMORY_LIMITS.get(outcome.phase, ("", 0.0))
        if figures.get(name, 0.0) > most:
            found.append(f"{outcome.phase}: {name[7:]} is {figures[name]:.0f}, limit {most:g}")
        if failed := figures["probes failed"]:
            found.append(f"{outcome.phase}: {failed:g} probes turned away")
    return found


def _show(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(aligned([[name, about] for name, about in EVERY.items()]))
        context.exit()


@relay_options("sessions", "size", "rate", "processes", "uri", "commands")
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_show,
              help="Name the attacks.")  # fmt: skip
@click.option("--attack", "names", multiple=True, type=click.Choice(list(EVERY)),
              help="Only this one; repeatable  [default: all]")  # fmt: skip
@click.option("--clients", default=50, type=click.IntRange(1), help="Hostile clients at once.")
@click.option("--seconds", default=5.0, help="Of each window.")
@click.option(
    "--messages", default=400_000, type=click.IntRange(1), help="At most this many normal mails."
)
@click.option("--patience", default=30.0, help="Seconds for others to be served again after it.")
@click.option("--least", default=0.80, help="The others' rate beside an attack, as a ratio.")
@click.option("--longest", default=50.0, help="Milliseconds: the p99 of probes beside an attack.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    names: tuple[str, ...],
    least: float,
    longest: float,
    json_: bool,
    uri: str | None,
    commands: Path | None,
    **rest: Any,
) -> None:
    """Read the options, run, show."""
    settings = Settings(commands=commands_of(commands), **rest)
    with failing():
        clients = f"{settings.clients} clients"
        directory, server, about = opened(
            uri, what=f"{clients}, windows of {settings.seconds:g} s; "
        )
        outcomes = [Run(name, settings, directory, server).go() for name in names or EVERY]
    if json_:
        options = asdict(settings) | {"commands": str(settings.commands), "about": about}
        click.echo(as_json(options, outcomes))
    else:
        click.echo("\n\n".join([about, *(table([each]) for each in outcomes)]))
    for outcome in outcomes:
        for note in outcome.notes:
            log(f"note, {outcome.phase}: {note}")
    problems = [f"{each.phase}: {text}" for each in outcomes for text in each.problems]
    finish(problems, misses(outcomes, least, longest))
