"""The cells of a scale run: which options each value gets, and what one run gave."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.database import Server
from bench.phases import Options, Result, measure
from bench.progress import log

VARIED = ("backlog", "workers", "domains", "size", "recipients", "sessions")
OCTETS = 1_000_000_000  # that one cell sends, about
DELIVERIES = 50_000  # that one cell makes of messages with several recipients
LARGE, PATIENCE = 1_000_000, 120.0  # octets of a message; seconds that it may stand still
WARM = 1000  # messages of the run that counts for nothing
VALUE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmM]?)[bB]?")
TIMES = {"": 1, "k": 1000, "m": 1_000_000}


def parse(text: str) -> int:
    """Return a value: 4096, 100k, 10MB, 1M. Raises ValueError."""
    match = VALUE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no number")
    return round(float(match[1]) * TIMES[match[2].lower()])


@dataclass(frozen=True)
class Cell:
    """One run of the relay at one value."""

    value: int
    turn: int
    messages: int
    figures: dict[str, float]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def at(base: Options, vary: str, value: int) -> Options:
    """Return the options for one value, with fewer messages where they are large or many."""
    changed: dict[str, Any] = {vary: value}
    options = replace(base, **changed)
    messages = min(options.messages, max(1, OCTETS // options.size))
    if options.recipients > 1:
        messages = min(messages, max(1, DELIVERIES // options.recipients))
    stall = max(options.stall, PATIENCE) if options.size >= LARGE else options.stall
    return replace(options, messages=messages, stall=stall)


def order(values: Sequence[int], rounds: int) -> Iterator[tuple[int, int]]:
    """Give round and value; every second round goes backwards, so that no drift favours a value."""
    for turn in range(rounds):
        for value in values if turn % 2 == 0 else reversed(values):
            yield turn, value


def run(
    base: Options,
    vary: str,
    values: Sequence[int],
    rounds: int,
    place: tuple[Server, Path],
    keep: Callable[[Cell], None],
) -> None:
    """Measure every cell, each on a fresh database, and hand it to `keep`."""
    server, directory = place
    if base.messages >= WARM and not base.rate:
        log("warming up")
        measure("relay", replace(base, messages=WARM, backlog=0, size=4096), directory, server)
    for number, (turn, value) in enumerate(order(values, rounds), 1):
        options = at(base, vary, value)
        log(f"{number} of {len(values) * rounds}: {vary} {value}, {options.messages} messages")
        result = measure("relay", options, directory, server)
        keep(_cell(value, turn, options.messages, result))


def _cell(value: int, turn: int, messages: int, result: Result) -> Cell:
    return Cell(
        value, turn, messages, result.figures, result.problems, result.notes, result.processes
    )
