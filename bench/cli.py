"""The command: options, the order of the runs, the exit code."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.database import Server, open_server
from bench.options import HELP, SHARED, commands_of, failing, filesystem, relay_options, workplace
from bench.phases import Options, Result, measure, selftest
from bench.progress import log
from bench.report import as_json, table


def _describe(options: Options, server: Server | None, directory: Path, own: bool) -> str:
    text = (
        f"{options.messages} messages of {options.size} bytes, "
        f"{options.recipients} recipient{'s' if options.recipients > 1 else ''} each, "
        f"{options.sessions} sessions {'kept' if options.reuse else 'of one message'}, "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    if server:
        where = f"{directory} ({filesystem(directory)})" if own else "given server"
        text += f"; PostgreSQL {server.version} in {where}, commits durable"
    return text


def _run(
    phases: list[str], options: Options, runs: int, uri: str | None
) -> tuple[str, list[Result]]:
    results: list[Result] = []
    directory = workplace(options.keep)
    server = None if phases == ["selftest"] else open_server(uri, directory)
    about = _describe(options, server, directory, uri is None)
    log(about)
    for turn in range(runs):
        if runs > 1:
            log(f"run {turn + 1} of {runs}")
        for phase in phases:
            if server is None:
                results.append(selftest(options, directory))
            else:
                results.append(measure(phase, options, directory, server))
    return about, results


@relay_options(*SHARED)
@click.command(context_settings=HELP)
@click.option("--phase", default="both", type=click.Choice(["ingest", "relay", "both"]))
@click.option("--hook", help="Handler of smtpd; with PYTHONPATH=. bench.rcpt_hook:Handler is one.")
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
    with failing():
        about, results = _run(["selftest"] if alone else phases, options, runs, uri)
    if json_:
        settings = asdict(options) | {"commands": str(options.commands), "about": about}
        click.echo(as_json(settings, results))
    else:
        click.echo(f"{about}\n\n{table(results)}\n")
    for result in results:
        for note in result.notes:
            log(f"note, {result.phase}: {note}")
        for problem in result.problems:
            log(f"WRONG, {result.phase}: {problem}")
    failed = any(result.problems for result in results)
    if not json_:
        click.echo("NOT all as sent, see above" if failed else "every recipient once, all as sent")
    sys.exit(1 if failed else 0)
