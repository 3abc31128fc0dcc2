"""A command's window against those beside it."""

from __future__ import annotations

import pytest

from bench.windows import Window, compare


def arrivals(start: float, end: float, rate: int) -> list[float]:
    """Evenly, `rate` per second, from `start` on."""
    return [start + n / rate for n in range(round((end - start) * rate))]


def test_a_command_is_compared_with_its_neighbours_by_time() -> None:
    windows = [
        Window(10, 20),
        Window(20, 22, "release"),
        Window(22, 27),
        Window(27, 31, "delete"),
        Window(31, 41),
    ]
    times = [
        *arrivals(31, 50, 300),  # out of order, and beyond the last window
        *arrivals(0, 20, 100),
        *arrivals(20, 22, 60),
        *arrivals(22, 27, 160),
        *[0.0] * 1000,  # never arrived
    ]
    release, delete = compare(windows, times)
    assert release.command == "release"
    assert release.before == pytest.approx(100)
    assert release.during == pytest.approx(60)
    assert release.after == pytest.approx(160)
    # 10 s at 100 and 5 s at 160 are 120 per second
    assert release.ratio == pytest.approx(0.5)
    # the median of 100, 160 and 300 is usual
    assert release.aftermath == pytest.approx(1)
    assert delete.aftermath == pytest.approx(300 / 160)
    assert (delete.command, delete.during, delete.ratio) == ("delete", 0, 0)


def test_no_mail_beside_a_command_is_no_success() -> None:
    windows = [Window(0, 1), Window(1, 2, "hold"), Window(2, 3)]
    assert [c.ratio for c in compare(windows, arrivals(1, 2, 10))] == [0.0]
    assert compare(windows[:2], arrivals(0, 2, 10)) == []
