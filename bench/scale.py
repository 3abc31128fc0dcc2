"""The command bench/scale: cost at several sizes of one thing."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from bench.options import (
    EXIT_CODES_HELP,
    HELP_SETTINGS,
    commands_of,
    failing,
    finish,
    opened,
    relay_options,
)
from bench.phases import Options, Result, measure
from bench.progress import log
from bench.report import as_json, table

ABOUT = f"""Measure what the relay costs at several sizes of one thing.

Every round runs the relay end to end once for each value, on a fresh database; a backlog is filled,
vacuumed and checkpointed before. Ratios are within a round, to the first value. {EXIT_CODES_HELP}a
process was larger than --limit-mb."""
MESSAGES, RATED_RUN_S, WARM_UP_MESSAGES = 10_000, 30, 1000
RUN_OCTETS = 1_000_000_000  # that one run sends, about
RUN_DELIVERIES = 50_000  # of messages with several recipients, in one run
LARGE_OCTETS, PATIENCE_S = 1_000_000, 120.0  # a large message may stand still for so long
VALUE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmM]?)[bB]?")
FACTORS = {"": 1, "k": 1000, "m": 1_000_000}
DEFAULTS = {
    "backlog": "0,10k,100k,1M",
    "workers": "1,2,4",
    "domains": "1,10,100,1k,10k",
    "size": "1k,100k,10M,50M",
    "recipients": "1,5,20,100",
    "sessions": "1,5,20,100,500",
}


def parse(text: str) -> int:
    """Return a value: 4096, 100k, 10MB, 1M. Raises ValueError."""
    match = VALUE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no number")
    return round(float(match[1]) * FACTORS[match[2].lower()])


class Values(click.ParamType[list[int]]):
    """Numbers with commas between, such as 0,10k,1M."""

    name = "numbers"

    def convert(self, value: Any, param: Any, context: Any) -> list[int]:
        """Read them."""
        try:
            return [parse(part) for part in value.split(",")]
        except ValueError as error:
            self.fail(str(error), param, context)


def at(base: Options, vary: str, value: int) -> Options:
    """Return the options for one value, with fewer messages where they are large or many."""
    changed: dict[str, Any] = {vary: value}
    options = replace(base, **changed)
    messages = min(options.messages, max(1, RUN_OCTETS // options.size))
    if options.recipients > 1:
        messages = min(messages, max(1, RUN_DELIVERIES // options.recipients))
    stall = max(options.stall, PATIENCE_S) if options.size >= LARGE_OCTETS else options.stall
    return replace(options, messages=messages, stall=stall)


def order(values: Sequence[int], rounds: int) -> Iterator[tuple[int, int]]:
    """Give round and value; every second round goes backwards, so that no drift favours a value."""
    for turn in range(rounds):
        for value in values if turn % 2 == 0 else reversed(values):
            yield turn, value


def add_ratios(rounds: Sequence[Sequence[Result]], first: str, rate: str) -> None:
    """Add to each result the ratio of its rate to that of the phase `first` of the same round."""
    for results in rounds:
        base = next((one.figures.get(rate) for one in results if one.phase == first), None)
        for one in results:
            if base and rate in one.figures:
                one.figures["ratio"] = one.figures[rate] / base


def too_large(results: Sequence[Result], limit: float) -> list[str]:
    """Return the processes that were larger, in MB; 0 means no limit."""
    return [
        f"{one.phase}: {process['what']} had {process['MB']:.0f} MB"
        for one in results
        for process in one.processes
        if limit and process["MB"] > limit
    ]


@relay_options(
    "sessions", "size", "recipients", "domains", "reuse", "processes", "workers",
    "backlog", "rate", "uri", "stall", "keep", "commands",
)  # fmt: skip
@click.command(context_settings=HELP_SETTINGS, help=ABOUT)
@click.option("--vary", default="backlog", type=click.Choice(list(DEFAULTS)), help="What changes.")
@click.option("--values", type=Values(), help="Its values, such as 0,10k,1M  [default: some]")
@click.option("--rounds", default=3, type=click.IntRange(1), help="Runs of each value.")
@click.option("--messages", type=click.IntRange(1),
              help="For each run, fewer if large  [default: 10000, or 30 s at --rate]")  # fmt: skip
@click.option("--observe", default=0.5, help="Seconds between (costly) looks at memory; 0: none.")
@click.option("--limit-mb", default=0.0, help="No process may be larger at its peak; 0: any size.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(
    vary: str,
    values: list[int] | None,
    rounds: int,
    limit_mb: float,
    json_: bool,
    uri: str | None,
    commands: Path | None,
    messages: int | None,
    rate: float,
    **rest: Any,
) -> None:
    """Read the options, measure, show."""
    values = list(dict.fromkeys(values or Values().convert(DEFAULTS[vary], None, None)))
    messages = messages or (max(100, round(rate * RATED_RUN_S)) if rate else MESSAGES)
    base = Options(commands=commands_of(commands), messages=messages, rate=rate, **rest)
    done: list[list[Result]] = [[] for _ in range(rounds)]
    with failing():
        directory, server, about = opened(uri, base.keep)
        if messages >= WARM_UP_MESSAGES and not rate:
            log("warming up")
            warm = replace(base, messages=WARM_UP_MESSAGES, backlog=0, size=4096)
            measure("relay", warm, directory, server)
        for turn, value in order(values, rounds):
            log(f"round {turn + 1} of {rounds}: {vary} {value}")
            result = measure("relay", at(base, vary, value), directory, server)
            result.phase = f"{vary} {value}"
            done[turn].append(result)
    add_ratios(
        done, f"{vary} {values[0]}", f"{'recipients' if vary == 'recipients' else 'messages'}/s"
    )
    found = [one for results in done for one in results]
    found.sort(key=lambda one: values.index(int(one.phase.split()[1])))
    if json_:
        settings = asdict(base) | {"commands": str(base.commands), "about": about}
        click.echo(as_json(settings, found))
    else:
        click.echo(f"{about}\n\n{table(found)}\n")
    for one in found:
        for note in one.notes:
            log(f"note, {one.phase}: {note}")
    finish(
        [f"{one.phase}: {text}" for one in found for text in one.problems],
        too_large(found, limit_mb),
    )
