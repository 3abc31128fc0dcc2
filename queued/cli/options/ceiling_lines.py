"""How many connections a route may have, and which other limits it has, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from queued.config import whole_route


def ceiling_lines(
    found: Mapping[str, Any], workers: Mapping[str, int] | None
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a ceiling, each with its label.

    `workers` deliver now, by their processes, or it is not known.
    """
    most, shown = found["connections"], found["shown"]
    keys = [each.key for each in whole_route().shown_limits()]
    limited = [key for key in keys if found[key] is not None]
    if not limited:
        shown = ", no ".join((f"{shown} connections", *keys))
    yield "ceiling", shown
    line = f"each worker: {most} connections, by {found['connections_by']}"
    if workers is not None:
        number = sum(workers.values())
        both = _counted(number, "worker"), _counted(len(workers), "process", "es")
        line += f"; {most * number} over {' in '.join(both)}" if number else "; none delivers now"
    yield "", line
    for key in limited:
        yield "", f"the {key}: by {found[f'{key}_by']}, over all workers and processes"


def _counted(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"
