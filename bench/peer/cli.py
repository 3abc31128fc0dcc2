"""The command: which systems, which cells, their turns, the exit code."""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from bench.database import open_server
from bench.options import HELP, commands_of, failing, filesystem, relay_options, workplace
from bench.peer.cells import SETS, Cell, scaled
from bench.peer.cgroup import place
from bench.peer.package import Unavailable
from bench.peer.pgmta import Pgmta
from bench.peer.postfix import Postfix
from bench.peer.ratios import as_data, table
from bench.peer.round import Load, Round
from bench.peer.system import System
from bench.phases import Result
from bench.progress import log


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

    def systems(self, alone: bool) -> list[System]:
        """Make pgmta, and Postfix unless it is not to be had here: a line says so."""
        systems: list[System] = [
            Pgmta(open_server(None, self.directory), self.commands, self.processes)
        ]
        if not alone:
            try:
                systems.append(Postfix(self.packages, self.changes))
            except Unavailable as missing:
                log(f"without postfix: {missing}")
        return systems

    def round(self, cell: Cell, system: System) -> Result:
        """Run one round of a cell."""
        options = cell.options(self.stall, self.processes, self.commands)
        name = f"{system.name}.{cell.scenario}"
        return Round(cell, system, Load(name, options, self.directory)).result()


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
@click.option("--alone", is_flag=True, help="Without Postfix.")
@click.option("--runs", default=3, type=click.IntRange(1), help="Rounds of each cell.")
@click.option("--scenario", type=click.Choice(["intake", "e2e"]), help="One cell, instead of sets.")
@click.option("--messages", default=3000, type=click.IntRange(1), help="Of that cell.")
@click.option("--sessions", default=20, type=click.IntRange(1), help="Of that cell, at once.")
@click.option(
    "--postfix", "changes", multiple=True, help="NAME=VALUE for main.cf, over the bench's."
)
@click.option("--packages", type=click.Path(path_type=Path), help="Keep fetched packages there.")
@click.option("--stall", default=30.0, help="Give up if nothing moves for this many seconds.")
@click.option("--keep", is_flag=True, help="Keep the directory of the run.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    set_: str,
    only: str,
    scale: float,
    alone: bool,
    runs: int,
    scenario: str | None,
    processes: int | None,
    changes: tuple[str, ...],
    packages: Path | None,
    stall: float,
    keep: bool,
    json_: bool,
    commands: Path | None,
    **load: Any,
) -> None:
    """Measure pgmta and Postfix in turn, and print the ratios.

    Each round of a cell runs both on an empty queue with the same source and sink. These compare
    every message. docs/peers.md says how Postfix is set up. Exit code: 0 all well; 1 a
    message was lost, duplicated or altered; 2 could not start.
    """
    if scenario:
        count = load.pop("messages")
        cells = [Cell(scenario, count, **load)]
    else:
        cells = [cell for cell in scaled(SETS[set_], scale) if only in cell.label]
    if not cells:
        raise click.UsageError("no such cell")
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
        systems = settings.systems(alone)
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
        fine = "every recipient once, all as sent"
        click.echo(f"\n{'NOT all as sent, see above' if failed else fine}")
    log(f"{time.monotonic() - started:.0f} s")
    sys.exit(1 if failed else 0)


def _counting() -> str:
    return "CPU by cgroup" if place() else "CPU by /proc: no cgroup can be made here"
