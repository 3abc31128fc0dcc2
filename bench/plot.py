"""Line charts as SVG: panels one below the other, each with a line and bars from min to max."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from bench.report import number

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 40, 48
INK, FAINT, LINE = "#333333", "#dddddd", "#2563a8"
TICKS = 5
SUFFIXES = ((1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Point:
    """A value on the x axis and what was measured there."""

    x: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Panel:
    """One chart; its y axis begins at 0."""

    title: str
    points: Sequence[Point]


def short(value: float) -> str:
    """Write a value for an axis: 1M, 100k, 0.25."""
    for size, suffix in SUFFIXES:
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def step(span: float) -> float:
    """Return a distance between ticks, 1, 2 or 5 times a power of ten, for about TICKS of them."""
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    return next(power * n for n in (1, 2, 5, 10) if power * n * TICKS >= span)


class Axis:
    """Places x values from left to right; on a log axis 0 stands apart, before the first."""

    def __init__(self, values: Sequence[float], log: bool) -> None:
        self.values = sorted(set(values))
        positive = [value for value in self.values if value > 0]
        self._log = log and bool(positive) and min(self.values) >= 0
        self._zero = math.log10(positive[0]) - 1 if positive else 0.0
        places = [self._place(value) for value in self.values]
        self._first, self._last = places[0], places[-1]

    def _place(self, value: float) -> float:
        if not self._log:
            return value
        return math.log10(value) if value > 0 else self._zero

    def at(self, value: float) -> float:
        """Return where the value stands."""
        span = self._last - self._first
        part = (self._place(value) - self._first) / span if span else 0.5
        return LEFT + 24 + part * (WIDTH - LEFT - RIGHT - 48)


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _panel(panel: Panel, axis: Axis, x_title: str, top: float) -> list[str]:
    floor = top + HEIGHT - BOTTOM
    most = max((point.high for point in panel.points), default=0.0) or 1.0
    tick = step(most)
    scale = (floor - top - TOP) / (math.ceil(most / tick) * tick)
    parts = [_text(LEFT, top + 24, panel.title, "start", ' font-weight="bold"')]
    for n in range(math.ceil(most / tick) + 1):
        y = floor - n * tick * scale
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, FAINT))
        parts.append(_text(LEFT - 8, y + 4, short(n * tick), "end"))
    for value in axis.values:
        parts.append(_line(axis.at(value), floor, axis.at(value), floor + 5, INK))
        parts.append(_text(axis.at(value), floor + 19, short(value)))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, floor + 38, x_title))
    spots = [(axis.at(p.x), floor - p.middle * scale, p) for p in panel.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    for x, y, p in spots:
        low, high = floor - p.low * scale, floor - p.high * scale
        parts.append(_line(x, low, x, high, LINE))
        parts += [_line(x - 5, end, x + 5, end, LINE) for end in (low, high)]
        tip = f"{short(p.x)}: {number(p.middle)} ({number(p.low)} to {number(p.high)})"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{LINE}">'
            f"<title>{escape(tip)}</title></circle>"
        )
    return parts


def svg(title: str, x_title: str, panels: Sequence[Panel], log: bool) -> str:
    """Return the whole picture; `log` spreads the x axis by powers of ten."""
    axis = Axis([point.x for panel in panels for point in panel.points], log)
    height = 36 + HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{INK}"'
        f' role="img" aria-label={quoteattr(title)}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 24, title, more=' font-size="15"'),
    ]
    for place, panel in enumerate(panels):
        parts += _panel(panel, axis, x_title, 36 + place * HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"
