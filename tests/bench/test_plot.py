"""The SVG writer: well-formed, complete, and to scale."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.plot import Panel, Point, svg

SVG = "{http://www.w3.org/2000/svg}"
POINTS = [Point(0, 3900, 4000, 4100), Point(10_000, 3800, 3950, 4200), Point(1_000_000, 1, 2, 8000)]


@pytest.mark.parametrize("log", [True, False])
def test_every_point_stands_where_it_belongs(log: bool) -> None:
    text = svg("A & <B>", "backlog", [Panel("rate > 0", POINTS), Panel("p50", POINTS[1:])], log)
    root = ElementTree.fromstring(text)
    circles = [
        (float(c.attrib["cx"]), float(c.attrib["cy"]), c.findtext(f"{SVG}title"))
        for c in root.iter(f"{SVG}circle")
    ]
    first, second = circles[:3], circles[3:]
    assert [title for _, _, title in circles] == [
        "0: 4000 (3900 to 4100)", "10k: 3950 (3800 to 4200)", "1M: 2 (1 to 8000)",
        "10k: 3950 (3800 to 4200)", "1M: 2 (1 to 8000)",
    ]  # fmt: skip
    assert [x for x, _, _ in first] == sorted({x for x, _, _ in first})
    assert [x for x, _, _ in second] == [x for x, _, _ in first[1:]], "one x axis for all panels"
    assert first[0][1] < first[1][1] < first[2][1], "larger is higher"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < x < width and 0 < y < height for x, y, _ in circles)
    lines = [p.attrib["points"].split() for p in root.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [3, 2]
    part = (first[1][0] - first[0][0]) / (first[2][0] - first[0][0])
    assert part == pytest.approx(1 / 3 if log else 0.01, abs=0.01), "0 is a decade before 10k"
    words = [t.text for t in root.iter(f"{SVG}text")]
    assert {"A & <B>", "rate > 0", "p50", "backlog", "10k", "1M", "8k"} <= set(words)


def test_a_single_value_and_nothing_but_zeros_have_a_chart_too() -> None:
    for point in (Point(0, 0, 0, 0), Point(5, 0.001, 0.002, 0.003)):
        root = ElementTree.fromstring(svg("t", "x", [Panel("p", [point])], True))
        assert len(list(root.iter(f"{SVG}circle"))) == 1
