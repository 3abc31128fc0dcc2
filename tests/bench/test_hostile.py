"""The report of `bench/hostile` on its figures, and settings that replace others."""

import pytest

from bench.daemons import merged
from bench.hostile import misses
from bench.phases import Result


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
    ("ratio", "p99", "refused", "wanted"),
    [
        (0.80, 50.0, 0, []),
        (0.79, 50.0, 0, ["flood: others at 0.79, limit 0.8"]),
        (0.80, 51.0, 0, ["flood: others' p99 51 ms, limit 50 ms"]),
        (0.80, 50.0, 2, ["flood: 2 probes turned away"]),
    ],
)
def test_a_limit_is_missed_only_beyond_it(
    ratio: float, p99: float, refused: int, wanted: list[str]
) -> None:
    figures = {"ratio": ratio, "beside accept ms p99": p99, "probes failed": refused}
    flood = Result("flood", figures)
    assert misses([flood], 0.8, 50.0) == wanted


def test_an_attack_without_figures_keeps_no_limit() -> None:
    assert misses([Result("flood")], 0.8, 50.0) == ["flood: not measured"]


def test_memory_has_a_limit() -> None:
    well = {"ratio": 1.0, "beside accept ms p99": 1.0, "probes failed": 0}
    large = Result("crowd-idle", well | {"beside largest process MB smtpd": 201.0})
    assert misses([large], 0.8, 50.0) == ["crowd-idle: largest process MB smtpd is 201, limit 200"]
