"""The limits of bench/guard: missed beyond the whole interval, undecided within it."""

import pytest

from bench.guard import Measured


def measured(name: str, ratios: list[float]) -> Measured:
    return Measured(name, [(ratio, 1.0) for ratio in ratios])


@pytest.mark.parametrize(
    ("name", "ratios", "missed", "undecided"),
    [
        ("queued", [1.0, 1.01, 1.02] * 9, False, False),
        ("queued", [1.0, 1.04, 1.2] * 9, False, True),
        ("queued", [1.1, 1.11, 1.2] * 9, True, False),
        ("hook", [0.7, 0.71, 0.72] * 9, False, False),
        ("hook", [0.5, 0.51, 0.6] * 9, True, False),
        ("hook", [0.5, 0.66, 0.8] * 9, False, True),
    ],
)
def test_an_interval_beyond_the_limit_misses_it(
    name: str,
    ratios: list[float],
    missed: bool,
    undecided: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bool(measured(name, ratios).missed(1.0, 1.05)) == missed
    assert ("UNDECIDED" in capsys.readouterr().err) == undecided


def test_ratios_are_to_the_baseline() -> None:
    assert measured("queued", [0.02, 0.04, 0.06]).interval(0.02) == pytest.approx((1.0, 3.0))
