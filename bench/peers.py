"""The command: which systems, which cells, their turns, the exit code."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from bench.database import open_server
from bench.options import (
    HELP_SETTINGS,
    commands_of,
    dump,
    failing,
    filesystem,
    finish,
    relay_options,
    workplace,
)
from bench.peer.cells import SETS, Cell, scaled
from bench.peer.counted import CountedPhase
from bench.peer.package import Unavailable
from bench.peer.pgmta import Pgmta
from bench.peer.postfix import Postfix
from bench.peer.round import run
from bench.peer.slow_sync import slow_sync
from bench.peer.system import System
from bench.phases import Phase, Result
from bench.progress import log
from bench.report import table

SUBJECT, PEER = "pgmta", "postfix"
UNRATED = ("source", "sink", "cores busy", ", ")
"""Figures with such a name are no comparison."""


@dataclass
class Settings:
    """The settings of all cells."""

    runs: int
    stall: float
    processes: int | None
    commands: Path
    directory: Path
    packages: Path
    ours: bool
    postfix: Postfix | None = None

    def systems(self, alone: bool) -> list[System]:
        """Make pgmta, and Postfix unless it is not to be had here: a line says so."""
        systems: list[System] = [
            Pgmta(open_server(None, self.directory), self.commands, self.processes)
        ]
        if not alone:
            try:
                self.postfix = Postfix(self.packages, {})
                systems.append(self.postfix)
            except Unavailable as missing:
                log(f"without postfix: {missing}")
        return systems

    def counted(self, cell: Cell) -> bool:
        """Return whether the tools of Postfix make and take the mail of a cell."""
        return cell.plain and self.postfix is not None and not self.ours

    def round(self, cell: Cell, system: System) -> Result:
        """Run one round of a cell."""
        options = cell.options(self.stall, self.processes, self.commands)
        name = f"{system.name}.{cell.scenario}"
        if self.postfix and self.counted(cell):
            load: Phase = CountedPhase(name, options, self.directory, self.postfix)
        else:
            load = Phase(name, options, self.directory)
        return run(cell, system, load)


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
                busy = f"load {os.getloadavg()[0]:.1f}"
                log(f"{cell.label}: round {turn + 1} of {settings.runs}, {system.name}, {busy}")
                results[system.name] = result = settings.round(cell, system)
                for note in result.notes:
                    log(f"note, {system.name}: {note}")
                for problem in result.problems:
                    log(f"WRONG, {system.name}: {problem}")
            rounds.append(results)
        measured.append(rounds)
    return measured


def ratios(rounds: Sequence[Mapping[str, Result]]) -> list[Result]:
    """Return the figures of pgmta over those of Postfix, for each round in which both are right.

    The same round, because the machine's mood is common to both; a round where one of them lost
    or altered mail says nothing about speed.
    """
    found = []
    for one in rounds:
        ours, theirs = one.get(SUBJECT), one.get(PEER)
        if not ours or not theirs or ours.problems or theirs.problems:
            continue
        figures = {
            name: ours.figures[name] / below
            for name, below in theirs.figures.items()
            if below and name in ours.figures and not any(word in name for word in UNRATED)
        }
        found.append(Result(f"{SUBJECT} / {PEER}", figures))
    return found


@relay_options("processes", "commands")
@click.command(context_settings=HELP_SETTINGS)
@click.option("--set", "set_", default="quick", type=click.Choice(list(SETS)))
@click.option("--only", default="", help="Cells of the set whose name has this in it.")
@click.option("--scale", default=1.0, help="Times the messages of each cell of the set.")
@click.option("--alone", is_flag=True, help="Without Postfix.")
@click.option(
    "--pair",
    default="postfix",
    type=click.Choice(["postfix", "ours"]),
    help="Source and sink: Postfix's count, ours compare.",
)
@click.option("--runs", default=3, type=click.IntRange(1), help="Rounds of each cell.")
@click.option("--packages", type=click.Path(path_type=Path), help="Keep fetched packages there.")
@click.option("--sync-ms", default=0, type=click.IntRange(0), help="Longer each sync.")
@click.option("--stall", default=30.0, help="Give up if nothing moves for this many seconds.")
@click.option("--keep", is_flag=True, help="Keep the directory of the run.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    set_: str,
    only: str,
    scale: float,
    alone: bool,
    pair: str,
    runs: int,
    processes: int | None,
    packages: Path | None,
    sync_ms: int,
    stall: float,
    keep: bool,
    json_: bool,
    commands: Path | None,
) -> None:
    """Measure pgmta and Postfix in turn, and print the ratios.

    Each round of a cell runs both on an empty queue with the same source and sink. These are
    smtp-source and smtp-sink of Postfix in cells of plain mail, and count. In the other cells, or
    with --pair ours, they compare every message. docs/develop/peers.md says how Postfix is set up.
    Exit code: 0 all well; 1 a message was lost, duplicated or altered; 2 could not start.
    """
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
        ours=pair == "ours",
    )
    settings.packages.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with failing(Unavailable):
        if sync_ms:
            slow_sync(sync_ms, directory)
        systems = settings.systems(alone)
        about = [f"{system.name}: {system.about}" for system in systems]
        about.append(f"{len(os.sched_getaffinity(0))} cores, {filesystem(directory)}")
        if sync_ms:
            about.append(f"each sync takes {sync_ms} ms longer")
        for line in about:
            log(line)
        measured = _measure(settings, cells, systems)
    results = [
        [result for one in rounds for result in one.values()] + ratios(rounds)
        for rounds in measured
    ]
    failed = any(result.problems for every in results for result in every)
    if json_:
        data = [
            {
                "cell": asdict(cell),
                "label": cell.label,
                "counted": settings.counted(cell),
                "runs": [vars(one) for one in every],
            }
            for cell, every in zip(cells, results, strict=True)
        ]
        click.echo(dump({"about": about, "cells": data}))
    else:
        click.echo("\n".join(about))
        for cell, every in zip(cells, results, strict=True):
            by = ", by smtp-source and smtp-sink" if settings.counted(cell) else ""
            click.echo(f"\n{cell.label} x {cell.count}{by}\n{table(every)}")
    log(f"{time.monotonic() - started:.0f} s")
    finish(["a system did not send all, see above"] if failed else [], [])
