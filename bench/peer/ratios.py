"""Figures of rounds side by side: each system's, and pgmta's as a part of each peer's."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.columns import aligned, number, spread
from bench.phases import Result

SUBJECT = "pgmta"
ORDER = (
    "messages/s",
    "recipients/s",
    "taken in, messages/s",
    "accept ms p50",
    "accept ms p99",
    "delivery ms p50",
    "delivery ms p99",
    "CPU ms/message",
    "memory MB",
    "disk KB/message",
    "CPU ms/message source",
    "CPU ms/message sink",
    "cores busy",
)
UNRATED = ("CPU ms/message source", "CPU ms/message sink", "cores busy")
Rounds = Sequence[Mapping[str, Result]]  # for each round the result by system


def of_system(rounds: Rounds, system: str, figure: str) -> list[float]:
    """Return a figure of a system in the rounds that have it."""
    return [
        one[system].figures[figure]
        for one in rounds
        if system in one and figure in one[system].figures
    ]


def ratios(rounds: Rounds, peer: str, figure: str) -> list[float]:
    """Return pgmta's figure over a peer's of the same round, where both are right.

    The same round, because the machine's mood is common to both; a round where one of them lost
    or altered mail says nothing about speed.
    """
    values: list[float] = []
    for one in rounds:
        if SUBJECT not in one or peer not in one:
            continue
        ours, theirs = one[SUBJECT], one[peer]
        if ours.problems or theirs.problems:
            continue
        below = theirs.figures.get(figure)
        if below and figure in ours.figures:
            values.append(ours.figures[figure] / below)
    return values


def _cell(values: Sequence[float]) -> str:
    low_middle_high = spread(values)
    if low_middle_high is None:
        return "-"
    low, middle, high = (number(value) for value in low_middle_high)
    return middle if len(values) == 1 else f"{middle} ({low}–{high})"  # noqa: RUF001


def table(label: str, rounds: Rounds, systems: Sequence[str]) -> str:
    """Return one cell as a table: median (minimum-maximum) of each system, then the ratios."""
    peers = [system for system in systems if system != SUBJECT] if SUBJECT in systems else []
    rows = [[label, *systems, *(f"{SUBJECT} / {peer}" for peer in peers)]]
    names = {name for one in rounds for result in one.values() for name in result.figures}
    details = sorted(name for name in names if ", " in name and name not in ORDER)
    for name in [*ORDER, *details]:
        if name in names:
            cells = [_cell(of_system(rounds, system, name)) for system in systems]
            if name not in UNRATED and name not in details:
                cells += [_cell(ratios(rounds, peer, name)) for peer in peers]
            rows.append([name, *cells])
    width = max(len(row) for row in rows)
    return aligned([row + [""] * (width - len(row)) for row in rows])


def as_data(rounds: Rounds, systems: Sequence[str]) -> dict[str, Any]:
    """Return all results of a cell and the ratios, for JSON."""
    figures = [name for name in ORDER if name not in UNRATED]
    return {
        "rounds": [{name: vars(result) for name, result in one.items()} for one in rounds],
        "ratios": {
            peer: {
                figure: dict(zip(("min", "median", "max"), three, strict=True))
                for figure in figures
                if (three := spread(ratios(rounds, peer, figure)))
            }
            for peer in systems
            if peer != SUBJECT
        },
    }
