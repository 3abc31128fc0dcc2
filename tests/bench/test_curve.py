"""Cells of a scale run: how large they are, in which order, and what they say together."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cells import Cell, at, order, parse
from bench.curve import Curve
from bench.phases import Options

BASE = Options(
    messages=10_000, sessions=20, size=4096, recipients=1, domains=1, reuse=True, processes=None,
    workers=1, backlog=0, rate=0.0, stall=20.0, sample=0.0, keep=False, commands=Path("bin"),
)  # fmt: skip


def test_values_are_read_and_large_cells_are_cut_down() -> None:
    assert [parse(text) for text in ("0", "100k", "1M", "50MB", "1.5kB")] == [
        0, 100_000, 1_000_000, 50_000_000, 1500
    ]  # fmt: skip
    for text in ("", "-1", "1G", "1e6", "k"):
        with pytest.raises(ValueError, match="no number"):
            parse(text)
    sizes = [at(BASE, "size", parse(text)) for text in ("1k", "100k", "10M", "50M")]
    assert [options.messages for options in sizes] == [10_000, 10_000, 100, 20]
    assert all(options.messages * options.size <= 1_000_000_000 for options in sizes)
    assert at(BASE, "recipients", 100).messages == 500
    assert at(BASE, "backlog", 5_000_000).messages == 10_000


def test_rounds_go_to_and_fro() -> None:
    assert list(order([1, 2, 3], 2)) == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1)]


def test_ratios_are_paired_within_a_round() -> None:
    def cell(value: int, turn: int, rate: float, **more: float) -> Cell:
        return Cell(value, turn, 10, {"messages/s": rate, **more})

    curve = Curve(
        "backlog",
        [
            cell(0, 0, 1000), cell(9, 0, 900), cell(9, 1, 600), cell(0, 1, 500), cell(9, 2, 700),
        ],
    )  # fmt: skip
    assert curve.of(9, "messages/s") == (600, 700, 900)
    assert curve.ratio(9) == pytest.approx((0.9, 1.05, 1.2)), "the third round has no first value"
    assert curve.of(9, "CPU ms/message") is None
    text = curve.table()
    assert "0.900" in text
    assert "1.050" in text


def test_the_largest_process_of_all_rounds_counts() -> None:
    sizes = [{"largest process MB queued": 40.0, "largest process MB smtpd": 310.0}, {}]
    curve = Curve("size", [Cell(9, turn, 1, figures) for turn, figures in enumerate(sizes)])
    assert curve.largest(9) == (310.0, "smtpd")
    assert curve.largest(1) is None
