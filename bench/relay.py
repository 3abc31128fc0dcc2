"""The command bench/relay: how fast mail goes into the queue, and through it."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.options import HELP_SETTINGS, SHARED, commands_of, failing, finish, opened, relay_options
from bench.phases import Options, measure, selftest
from bench.progress import log
from bench.report import as_json, table


@relay_options(*SHARED)
@click.command(context_settings=HELP_SETTINGS)
@click.option("--phase", default="both", type=click.Choice(["ingest", "relay", "both"]))
@click.option("--runs", default=1, type=click.IntRange(1), help="Repeat; shows min, median, max.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option("--selftest", "alone", is_flag=True, help="Source straight into sink, no product.")
def main(
    uri: str | None,
    phase: str,
    runs: int,
    json_: bool,
    alone: bool,
    commands: Path | None,
    **rest: Any,
) -> None:
    """Measure how fast mail goes into the queue, and through it to the next hop.

    Starts database, smtpd and queued on an empty directory, sends, receives and compares. CPU of
    source and sink is shown apart: they use the same cores. Exit code: 0 all well; 1 something
    was lost, duplicated or altered; 2 could not start.
    """
    options = Options(commands=commands_of(commands), **rest)
    phases = ["ingest", "relay"] if phase == "both" else [phase]
    text = f"{options.messages} messages of {options.size} bytes, {options.recipients} recipients, "
    text += f"{options.sessions} sessions {'kept' if options.reuse else 'of one message'}, "
    text += f"{len(os.sched_getaffinity(0))} cores; "
    results = []
    with failing():
        directory, server, about = opened(uri, options.keep, text)
        for turn in range(runs):
            log(f"run {turn + 1} of {runs}")
            if alone:
                results.append(selftest(options, directory))
            else:
                results += [measure(name, options, directory, server) for name in phases]
    if json_:
        settings = asdict(options) | {"commands": str(options.commands), "about": about}
        click.echo(as_json(settings, results))
    else:
        click.echo(f"{about}\n\n{table(results)}\n")
    for result in results:
        for note in result.notes:
            log(f"note, {result.phase}: {note}")
    finish([f"{one.phase}: {problem}" for one in results for problem in one.problems], [])
