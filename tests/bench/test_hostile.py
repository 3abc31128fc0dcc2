"""What bench/hostile says of its figures, and how settings are laid over others."""

import pytest

from bench.daemons import merged
from bench.hostile import misses
from bench.hostile_run import Outcome


def test_sections_merge_and_lists_are_replaced() -> None:
    base = {"relay": {"networks": ["127.0.0.0/8"], "domains": []}, "processes": 1}
    more = {"relay": {"networks": ["::1/128"]}, "limits": {"recipients": 200}}
    assert merged(base, more) == {
        "relay": {"networks": ["::1/128"], "domains": []},
        "processes": 1,
        "limits": {"recipients": 200},
    }
    assert base["relay"] == {"networks": ["127.0.0.0/8"], "domains": []}


@pytest.mark.parametrize(
    ("ratio", "p99", "wanted"),
    [
        (0.80, 50.0, []),
        (0.79, 50.0, ["flood: others at 0.79, limit 0.8"]),
        (0.80, 51.0, ["flood: others' p99 51 ms, limit 50 ms"]),
        (None, None, ["flood: not measured"]),
    ],
)
def test_a_limit_is_missed_only_beyond_it(
    ratio: float | None, p99: float | None, wanted: list[str]
) -> None:
    figures = {"ratio": ratio, "beside accept ms p99": p99}
    known = {name: value for name, value in figures.items() if value is not None}
    assert misses([Outcome("flood", known)], 0.8, 50.0) == wanted
