"""Line charts as SVG: panels one below the other, each with a line and bars from min to max."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import pygal
from pygal.style import Style

from bench.columns import number

WIDTH, HEIGHT, HEAD = 720, 260, 36
LINE = "#2563a8"
STYLE = Style(
    background="white",
    plot_background="white",
    font_family="sans-serif",
    colors=(LINE, LINE),
    title_font_size=14,
    label_font_size=12,
    major_label_font_size=12,
    guide_stroke_color="#dddddd",
    major_guide_stroke_color="#dddddd",
    guide_stroke_dasharray="none",
    major_guide_stroke_dasharray="none",
)
BLANK = "\N{FIGURE SPACE}"
LEFT_OUT = re.compile(  # a comment has the date, the script serves pygal's own tooltips
    r"<!--.*?-->|<script.*?</script>", re.DOTALL
)
TIP = re.compile(r'<desc class="label">(.*?)</desc>')  # browsers show a <title>
SUFFIXES = ((1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Point:
    """Hold a value on the x axis and the figures there."""

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
    """Return a value as an axis shows it: 1M, 100k, 0.25."""
    for size, suffix in SUFFIXES:
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def places(values: Sequence[float], log: bool) -> dict[float, float]:
    """Return where each value stands; on a log axis 0 stands a decade before the first other."""
    positive = [value for value in values if value > 0]
    if not log or not positive or min(values) < 0:
        return {value: value for value in values}
    zero = math.log10(min(positive)) - 1
    return {value: math.log10(value) if value else zero for value in values}


def _panel(panel: Panel, at: dict[float, float], x_title: str) -> str:
    """Return one chart. All y labels are equally long, so that the x axes of all panels align."""
    margin = (max(at.values()) - min(at.values())) / 25 or 1.0
    chart = pygal.XY(
        style=STYLE,
        width=WIDTH,
        height=HEIGHT,
        explicit_size=True,
        js=[],  # no script from another host
        no_prefix=True,
        disable_xml_declaration=True,
        show_legend=False,
        title=panel.title,
        x_title=x_title,
        x_labels=[{"value": place, "label": short(value)} for value, place in at.items()],
        xrange=(min(at.values()) - margin, max(at.values()) + margin),
        range=(0, max(point.high for point in panel.points) or 1.0),
        value_formatter=lambda value: short(value).rjust(8, BLANK),
        allow_interruptions=True,
        max_scale=6,
        stroke_style={"width": 2},
    )
    ends = [[(at[p.x], p.low), (at[p.x], p.high), (None, None)] for p in panel.points]
    chart.add("min to max", [end for pair in ends for end in pair], show_dots=False)
    medians = [{"value": (at[p.x], p.middle), "label": _label(p)} for p in panel.points]
    chart.add("median", medians, dots_size=4)
    return TIP.sub(r"<title>\1</title>", LEFT_OUT.sub("", str(chart.render())))


def _label(point: Point) -> str:
    spread = f"{number(point.low)} to {number(point.high)}"
    return f"{short(point.x)}: {number(point.middle)} ({spread})"


def svg(title: str, x_title: str, panels: Sequence[Panel], log: bool) -> str:
    """Return the whole picture; `log` spreads the x axis by powers of ten."""
    at = places(sorted({point.x for panel in panels for point in panel.points}), log)
    height = HEAD + HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label={quoteattr(title)}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-family="sans-serif"'
        f' font-size="15">{escape(title)}</text>',
    ]
    for place, panel in enumerate(panels):
        top = HEAD + place * HEIGHT
        parts.append(f'<g transform="translate(0 {top})">{_panel(panel, at, x_title)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"
