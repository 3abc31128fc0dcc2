"""Aligned tables of figures, and the three figures that stand for many."""

import statistics
from collections.abc import Sequence

from bench.report import number

Spread = tuple[float, float, float]


def spread(values: Sequence[float]) -> Spread | None:
    """Return minimum, median and maximum; None of nothing."""
    return (min(values), statistics.median(values), max(values)) if values else None


def cells(values: Spread | None) -> list[str]:
    """Return the three figures as they stand in a table."""
    return [number(value) for value in values] if values else ["-"] * 3


def cell(value: float | None) -> str:
    """Return one figure as it stands in a table."""
    return "-" if value is None else number(value)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *others]).rstrip())
    return "\n".join(lines)
