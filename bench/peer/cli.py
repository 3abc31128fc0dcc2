"""The command: which systems, which cells, their turns, the exit code."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from bench.database import open_server
from bench.options import HELP, commands_of, failing, filesystem, relay_options, workplace
from bench.peer.cells import SETS, Cell, scaled
from bench.peer.cgroup import place
from bench.peer.exim import Exim
from bench.peer.haraka import Haraka
from bench.peer.opensmtpd import OpenSmtpd
from bench.peer.package import Unavailable
from bench.peer.pair import ToolLoad
from bench.peer.pgmta import Pgmta
from bench.peer.postfix import Postfix
from bench.peer.ratios import as_data, table
from bench.peer.round import Load, Round
from bench.peer.system import System
from bench.phases import Result
from bench.progress import log

PEERS = ("postfix", "exim", "opensmtpd", "haraka")


@dataclass
class Settings:
    """The settings of all cells."""

    runs: int
    stall: float
    processes: int | None
    commands: Path
    directory: Path
    packages: Path
    changes: dict[str, str]
    tools: Postfix | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def systems(self, names: list[str]) -> list[System]:
        """Make pgmta and the peers; one that is not to be had here is left out with a line."""
        makers: dict[str, Callable[[], System]] = {
            "postfix": lambda: Postfix(self.packages, self.changes),
            "opensmtpd": lambda: OpenSmtpd(self.packages),
            "exim": lambda: Exim(self.packages),
            "haraka": lambda: Haraka(self.packages),
        }
        systems: list[System] = [
            Pgmta(open_server(None, self.directory), self.commands, self.processes)
        ]
        for name in names:
            try:
                systems.append(makers[name]())
            except Unavailable as missing:
                self.left_out[name] = str(missing)
                log(f"without {name}: {missing}")
        return systems

    def round(self, cell: Cell, system: System) -> Result:
        """Run one round of a cell."""
        options = cell.options(self.stall, self.processes, self.commands)
        name = f"{system.name}.{cell.scenario}"
        if self.tools:
            load: Load = ToolLoad(name, options, self.directory, self.tools)
        else:
            load = Load(name, options, self.directory)
        return Round(cell, system, load).result()


def _measure(
    settings: Settings, cells: list[Cell], systems: list[System]
) -> list[list[dict[str, Result]]]:
    """Run all rounds of a cell, the systems in turn, before the next cell."""
    measured: list[list[dict[str, Result]]] = []
    for cell in cells:
        rounds: list[dict[str, Result]] = []
        for turn in range(settings.runs):
            # the first system of one round is the last of the next
            order = systems if turn % 2 == 0 else systems[::-1]
            results: dict[str, Result] = {}
            for system in order:
                log(f"{cell.label}: round {turn + 1} of {settings.runs}, {system.name}")
                results[system.name] = result = settings.round(cell, system)
                for note in result.notes:
                    log(f"note, {system.name}: {note}")
                for problem in result.problems:
                    log(f"WRONG, {system.name}: {problem}")
            rounds.append(results)
        measured.append(rounds)
    return measured


def _changes(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    return {name.strip(): value.strip() for name, _, value in pairs}


@relay_options("reuse", "recipients", "size", "rate", "processes", "commands")
@click.command(context_settings=HELP)
@click.option("--set", "set_", default="quick", type=click.Choice(list(SETS)))
@click.option("--only", default="", help="Cells of the set whose name has this in it.")
@click.option("--scale", default=1.0, help="Times the messages of each cell of the set.")
@click.option("--with", "peers", default="postfix", help=f"Peers, of {', '.join(PEERS)}.")
@click.option("--runs", default=3, type=click.IntRange(1), help="Rounds of each cell.")
@click.option("--scenario", type=click.Choice(["intake", "e2e"]), help="One cell, instead of sets.")
@click.option("--messages", default=3000, type=click.IntRange(1), help="Of that cell.")
@click.option("--sessions", default=20, type=click.IntRange(1), help="Of that cell, at once.")
@click.option(
    "--postfix", "changes", multiple=True, help="NAME=VALUE for main.cf, over the bench's."
)
@click.option(
    "--pair",
    default="bench",
    type=click.Choice(["bench", "postfix"]),
    help="Source and sink: the bench's, which compare all, or smtp-source and smtp-sink.",
)
@click.option("--packages", type=click.Path(path_type=Path), help="Keep fetched packages there.")
@click.option("--stall", default=30.0, help="Give up if nothing moves for this many seconds.")
@click.option("--keep", is_flag=True, help="Keep the directory of the run.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    set_: str,
    only: str,
    scale: float,
    peers: str,
    runs: int,
    scenario: str | None,
    processes: int | None,
    changes: tuple[str, ...],
    pair: str,
    packages: Path | None,
    stall: float,
    keep: bool,
    json_: bool,
    commands: Path | None,
    **load: Any,
) -> None:
    """Measure pgmta and other mail servers in turn, and print the ratios.

    Each round of a cell runs every system on an empty queue with the same source and sink. Both
    compare every message. docs/peers.md says how the peers are set up. Exit code: 0 all well; 1 a
    message was lost, duplicated or altered; 2 could not start.
    """
    if scenario:
        count = load.pop("messages")
        cells = [Cell(scenario, count, **load)]
    else:
        cells = [cell for cell in scaled(SETS[set_], scale) if only in cell.label]
    if pair == "postfix":
        cells = [cell for cell in cells if not cell.rate]  # smtp-source knows no rate
    names = [name for name in peers.replace(",", " ").split() if name]
    unknown = set(names) - set(PEERS)
    if unknown or not cells:
        raise click.UsageError(f"no such peer: {', '.join(unknown)}" if unknown else "no such cell")
    if any(cell.tls or cell.round_trip for cell in cells) and (pair, names) != (
        "bench",
        [name for name in names if name == "postfix"],
    ):
        raise click.UsageError("STARTTLS and round trips: only --with postfix and --pair bench")
    directory = workplace(keep)
    settings = Settings(
        runs=runs,
        stall=stall,
        processes=processes,
        commands=commands_of(commands),
        directory=directory,
        packages=(packages or directory / "packages").resolve(),
        changes=_changes(changes),
    )
    settings.packages.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with failing(Unavailable):
        if pair == "postfix":
            settings.tools = Postfix(settings.packages, {})
        systems = settings.systems(names)
        about = [f"{system.name}: {system.about}" for system in systems]
        about.append(
            f"{len(os.sched_getaffinity(0))} cores, {filesystem(directory)}, {_counting()}"
        )
        for line in about:
            log(line)
        measured = _measure(settings, cells, systems)
    order = [system.name for system in systems]
    failed = any(result.problems for cell in measured for one in cell for result in one.values())
    if json_:
        data = {
            "about": about,
            "left out": settings.left_out,
            "cells": [
                {"cell": asdict(cell), "label": cell.label, **as_data(rounds, order)}
                for cell, rounds in zip(cells, measured, strict=True)
            ],
        }
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo("\n".join(about))
        for cell, rounds in zip(cells, measured, strict=True):
            click.echo(f"\n{table(f'{cell.label} x {cell.count}', rounds, order)}")
        fine = (
            "all counted, none compared"
            if pair == "postfix"
            else "every recipient once, all as sent"
        )
        click.echo(f"\n{'NOT all as sent, see above' if failed else fine}")
    log(f"{time.monotonic() - started:.0f} s")
    sys.exit(1 if failed else 0)


def _counting() -> str:
    return "CPU by cgroup" if place() else "CPU by /proc: no cgroup can be made here"
