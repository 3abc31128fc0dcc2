"""Charts: well-formed, complete, to scale, and the same on every day."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.plot import Panel, Point, svg

SVG = "{http://www.w3.org/2000/svg}"
POINTS = [Point(0, 3900, 4000, 4100), Point(10_000, 3800, 3950, 4200), Point(1_000_000, 1, 2, 8000)]


@pytest.mark.parametrize("log", [True, False])
def test_every_point_stands_where_it_belongs(log: bool) -> None:
    panels = [Panel("rate > 0", POINTS), Panel("p50", POINTS[1:])]
    args = ("A & <B>", "backlog", panels, log)
    text = svg(*args)
    assert text == svg(*args), "nothing in it depends on the run"
    root = ElementTree.fromstring(text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"
    assert "<script" not in text
    dots = [g for g in root.iter(f"{SVG}g") if g.get("class") == "dots"]
    tips = [g.findtext(f"{SVG}title") for g in dots]
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    first, second = circles[:3], circles[3:]
    assert tips == [
        "0: 4000 (3900 to 4100)", "10k: 3950 (3800 to 4200)", "1M: 2 (1 to 8000)",
        "10k: 3950 (3800 to 4200)", "1M: 2 (1 to 8000)",
    ]  # fmt: skip
    assert [x for x, _ in first] == sorted({x for x, _ in first})
    assert [x for x, _ in second] == [x for x, _ in first[1:]], "one x axis for all panels"
    assert first[0][1] < first[1][1] < first[2][1], "larger is higher"
    plots = [g.get("transform") for g in root.iter(f"{SVG}g") if g.get("class") == "plot"]
    assert len(plots) == 2
    assert len(set(plots)) == 1, "the x axes of all panels align"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < x < width and 0 < y < height for x, y in circles)
    paths = [
        p.attrib["d"].split()
        for p in root.iter(f"{SVG}path")
        if "line reactive" in p.attrib["class"]
    ]
    assert [len(path) // 2 for path in paths] == [2, 2, 2, 3, 2, 2, 2], (
        "bars, then the line, per panel"
    )
    part = (first[1][0] - first[0][0]) / (first[2][0] - first[0][0])
    assert part == pytest.approx(1 / 3 if log else 0.01, abs=0.01), "0 is a decade before 10k"
    words = [(t.text or "").strip() for t in root.iter(f"{SVG}text")]
    assert {"A & <B>", "rate > 0", "p50", "backlog", "10k", "1M", "8k"} <= set(words)


def test_a_single_value_and_nothing_but_zeros_have_a_chart_too() -> None:
    for point in (Point(0, 0, 0, 0), Point(5, 0.001, 0.002, 0.003)):
        root = ElementTree.fromstring(svg("t", "x", [Panel("p", [point])], True))
        assert len(list(root.iter(f"{SVG}circle"))) == 1
