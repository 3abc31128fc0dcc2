"""Runs of bench/scale: how large they are, in which order, and their ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.phases import Options, Result
from bench.scale import add_ratios, at, order, parse

BASE = Options(
    messages=10_000, sessions=20, size=4096, recipients=1, domains=1, reuse=True, processes=None,
    workers=1, backlog=0, rate=0.0, stall=20.0, keep=False, commands=Path("bin"),
)  # fmt: skip


def test_values_are_read_and_large_runs_are_cut_down() -> None:
    assert [parse(text) for text in ("0", "100k", "1M", "50MB", "1.5kB")] == [
        0, 100_000, 1_000_000, 50_000_000, 1500
    ]  # fmt: skip
    for text in ("", "-1", "1G", "1e6", "k"):
        with pytest.raises(ValueError, match="no number"):
            parse(text)
    sizes = [at(BASE, "size", parse(text)) for text in ("1k", "100k", "10M", "50M")]
    assert [options.messages for options in sizes] == [10_000, 10_000, 100, 20]
    assert at(BASE, "recipients", 100).messages == 500
    assert at(BASE, "backlog", 5_000_000).messages == 10_000


def test_rounds_go_to_and_fro() -> None:
    assert list(order([1, 2, 3], 2)) == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1)]


def test_ratios_are_paired_within_a_round() -> None:
    def result(phase: str, rate: float) -> Result:
        return Result(phase, {"messages/s": rate})

    rounds = [
        [result("backlog 0", 1000), result("backlog 9", 900)],
        [result("backlog 9", 600), result("backlog 0", 500)],
        [result("backlog 9", 700)],
    ]
    add_ratios(rounds, "backlog 0", "messages/s")
    ratios = [[one.figures.get("ratio") for one in results] for results in rounds]
    assert ratios == [[1.0, 0.9], [1.2, 1.0], [None]], "the third round has no first value"
