"""Aligned tables of figures, and minimum, median and maximum of many."""

import statistics
from collections.abc import Sequence

Spread = tuple[float, float, float]


def number(value: float) -> str:
    """Return a figure with about four digits."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.{2 if abs(value) >= 10 else 3}f}"


def spread(values: Sequence[float]) -> Spread | None:
    """Return minimum, median and maximum; None of nothing."""
    return (min(values), statistics.median(values), max(values)) if values else None


def cells(values: Spread | None) -> list[str]:
    """Return the three figures as a table shows them."""
    return [number(value) for value in values] if values else ["-"] * 3


def aligned(rows: Sequence[Sequence[str]], least: int = 0) -> str:
    """Return the rows with aligned columns, the first to the left and the others to the right.

    Columns of figures have at least `least` characters.
    """
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for name, *figures in rows:
        cells = [text.rjust(max(width, least)) for text, width in zip(figures, widths, strict=True)]
        lines.append("  ".join([name.ljust(first), *cells]).rstrip())
    return "\n".join(lines)
