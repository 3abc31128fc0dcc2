"""Table and JSON of a run of bench/relay."""

import json
from collections.abc import Sequence
from typing import Any

from bench.columns import aligned, cells, number, spread
from bench.phases import Result

ORDER = [
    "messages/s",
    "recipients/s",
    "ratio",
    "seconds",
    "taken in, messages/s",
    "accept ms p50",
    "accept ms p99",
    "delivery ms p50",
    "delivery ms p99",
    "acknowledged to next hop ms p50",
    "acknowledged to next hop ms p99",
    *(f"CPU ms/message {name}" for name in ("smtpd", "queued", "postgres", "source", "sink")),
    "cores busy",
    *(f"memory MB {name}" for name in ("smtpd", "queued", "postgres")),
    "commits/message",
    "WAL syncs/message",
    "WAL KB/message",
    "KB written/message",
    "sink connections",
    "sink connections at once",
    "recipients/transaction",
]
MIN_WIDTH_CHARACTERS = 8  # of a column of figures


def _cells(results: Sequence[Result], name: str) -> list[str]:
    values = [result.figures[name] for result in results if name in result.figures]
    width = 1 if len(results) == 1 else 3
    if not values:
        return ["-"] * width
    return [number(values[0])] if width == 1 else cells(spread(values))


def table(results: Sequence[Result]) -> str:
    """Return the aligned table: a row for each figure, a column (or three) for each phase."""
    phases: dict[str, list[Result]] = {}
    for result in results:
        phases.setdefault(result.phase, []).append(result)
    names = {name for result in results for name in result.figures}
    head = [""]
    second = [""]
    for phase, of_phase in phases.items():
        head += [phase] if len(of_phase) == 1 else [phase, "", ""]
        second += [""] if len(of_phase) == 1 else ["min", "median", "max"]
    rows = [head, second] if any(second) else [head]
    rows += [
        [name, *(cell for of_phase in phases.values() for cell in _cells(of_phase, name))]
        for name in [*ORDER, *sorted(names - set(ORDER))]
        if name in names
    ]
    return aligned(rows, MIN_WIDTH_CHARACTERS)


def as_json(settings: dict[str, Any], results: Sequence[Result]) -> str:
    """Return settings and all results."""
    return json.dumps(
        {"settings": settings, "runs": [vars(result) for result in results]}, indent=2
    )
