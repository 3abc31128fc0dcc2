"""The command bench/scale: cost at several sizes of one thing."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench import cells
from bench.cells import VARIED, Cell
from bench.curve import Curve
from bench.options import EXIT, HELP, commands_of, dump, failing, finish, opened, relay_options
from bench.phases import Options
from bench.progress import log

ABOUT = f"""Measure what the relay costs at several sizes of one thing.

Every round runs the relay end to end once for each value, on a fresh database; a backlog is filled,
vacuumed and checkpointed before. Ratios are within a round, to the first value. {EXIT}a process was
larger than --limit-mb."""
MESSAGES, SECONDS = 10_000, 30
DEFAULTS = {
    "backlog": "0,10k,100k,1M",
    "workers": "1,2,4",
    "domains": "1,10,100,1k,10k",
    "size": "1k,100k,10M,50M",
    "recipients": "1,5,20,100",
    "sessions": "1,5,20,100,500",
}


class Values(click.ParamType[list[int]]):
    """Numbers with commas between, such as 0,10k,1M."""

    name = "numbers"

    def convert(self, value: Any, param: Any, context: Any) -> list[int]:
        """Read them."""
        try:
            return [cells.parse(part) for part in value.split(",")]
        except ValueError as error:
            self.fail(str(error), param, context)


def _messages(given: int | None, rate: float) -> int:
    return given or (max(100, round(rate * SECONDS)) if rate else MESSAGES)


def _saved(path: Path) -> tuple[dict[str, Any], list[Cell]]:
    try:
        saved = json.loads(path.read_text())
        return saved["settings"], [Cell(**one) for one in saved["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{path} is not of this command: {error}") from None


def _measure(
    vary: str, values: list[int], rounds: int, uri: str | None, save: Path | None, base: Options
) -> tuple[dict[str, Any], list[Cell]]:
    directory, server, about = opened(uri, base.keep)
    settings = asdict(base) | {"commands": str(base.commands), "vary": vary, "values": values}
    settings |= {"rounds": rounds, "about": about}
    done: list[Cell] = []

    def keep(cell: Cell) -> None:
        done.append(cell)
        if save:
            save.write_text(dump({"settings": settings, "cells": [c.as_dict() for c in done]}))

    cells.run(base, vary, values, rounds, (server, directory), keep)
    return settings, done


def _title(settings: dict[str, Any]) -> str:
    parts = [f"{settings['messages']} messages at most"]
    for name, unit in (("sessions", "sessions"), ("size", "bytes")):
        if settings["vary"] != name:
            parts.append(f"{settings[name]} {unit}")
    if settings["rate"]:
        parts.append(f"{settings['rate']:g} per second")
    return f"pgmta by {settings['vary']}: {', '.join(parts)}"


@relay_options(
    "sessions", "size", "recipients", "domains", "reuse", "processes", "workers",
    "backlog", "rate", "uri", "stall", "sample", "keep", "commands",
)  # fmt: skip
@click.command(context_settings=HELP, help=ABOUT)
@click.option("--vary", default="backlog", type=click.Choice(VARIED), help="What changes.")
@click.option("--values", type=Values(), help="Its values, such as 0,10k,1M  [default: some]")
@click.option("--rounds", default=3, type=click.IntRange(1), help="Runs of each value.")
@click.option("--messages", type=click.IntRange(1),
              help="For each run, fewer if large  [default: 10000, or 30 s at --rate]")  # fmt: skip
@click.option("--observe", default=0.5, help="Seconds between (costly) looks at memory; 0: none.")
@click.option("--limit-mb", default=0.0, help="No process may be larger at its peak; 0: any size.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the JSON there too, after every run.")  # fmt: skip
@click.option("--from", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Show saved JSON; measures nothing.")  # fmt: skip
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    vary: str,
    values: list[int] | None,
    rounds: int,
    limit_mb: float,
    save: Path | None,
    source: Path | None,
    json_: bool,
    uri: str | None,
    commands: Path | None,
    messages: int | None,
    rate: float,
    **rest: Any,
) -> None:
    """Read the options, measure or load, show."""
    if source:
        settings, found = _saved(source)
    else:
        values = list(dict.fromkeys(values or Values().convert(DEFAULTS[vary], None, None)))
        least = 0 if vary == "backlog" else 16 if vary == "size" else 1
        if min(values) < least:
            raise click.UsageError(f"--values: {vary} is at least {least}")
        base = Options(
            commands=commands_of(commands), messages=_messages(messages, rate), rate=rate, **rest
        )
        with failing():
            settings, found = _measure(vary, values, rounds, uri, save, base)
    curve = Curve(settings["vary"], found)
    if not found:
        raise click.UsageError("there is no run in it")
    if json_:
        click.echo(dump({"settings": settings, "cells": [cell.as_dict() for cell in found]}))
    else:
        click.echo(f"{_title(settings)}; {settings['about']}\n\n{curve.table()}\n")
    for note in curve.notes():
        log(f"note, {note}")
    misses = []
    for value in curve.values():
        largest = curve.largest(value)
        if limit_mb and largest and largest[0] > limit_mb:
            misses.append(f"{settings['vary']} {value}: {largest[1]} had {largest[0]:.0f} MB")
    finish(curve.problems(), misses)
