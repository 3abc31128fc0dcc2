"""How many connections and which rate a route may have, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def ceiling_lines(
    found: Mapping[str, Any], workers: Mapping[str, int] | None
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a ceiling, each with its label.

    `workers` deliver now, by their processes, or it is not known.
    """
    most, shown = found["connections"], found["shown"]
    if found["rate"] is None:
        shown += " connections, no rate"
    yield "ceiling", shown
    words = f"each worker: {most} connections, by {found['connections_by']}"
    if workers is not None:
        number = sum(workers.values())
        both = _counted(number, "worker"), _counted(len(workers), "process", "es")
        words += f"; {most * number} over {' in '.join(both)}" if number else "; none delivers now"
    yield "", words
    if found["rate"] is not None:
        yield "", f"the rate: by {found['rate_by']}, over all workers and processes"


def _counted(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"
