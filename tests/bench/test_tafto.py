"""bench/tafto and bench/apart with small numbers: they send, count, compare, and judge aims."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from bench.namespaces import possible
from bench.phases import Result
from bench.tafto import misses
from bench.workload import MEASURES, RATE, RATIO
from tests.support.daemons import ROOT
from tests.support.database import PrivateServer

SMALL = ["--batch", "60", "--messages", "80", "--lone", "5", "--workers", "1", "--runs", "1"]


def bench(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bench" / name, *words], capture_output=True, text=True, timeout=150, check=False
    )


def runs(name: str, *words: str) -> dict[str, dict[str, float]]:
    """Return the figures by phase of a run that went well."""
    done = bench(name, "--json", "--no-limits", *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    assert [run["problems"] for run in found] == [[]] * len(found)
    return {run["phase"]: run["figures"] for run in found}


@pytest.mark.slow
def test_each_measure_of_tafto_has_its_figures(private_server: PrivateServer) -> None:
    figures = runs("tafto", "--uri", private_server.uri, *SMALL)
    assert list(figures) == list(MEASURES)
    for name, measure in MEASURES.items():
        assert figures[name][measure.figure] > 0, name
        assert figures[name]["rows per mail"] == 2 or name == "beside", name
    assert figures["tasks50"]["p99"] >= figures["tasks50"]["send ms p50"] > 0
    assert figures["lone"]["INSERT and COMMIT ms p50"] > 0


@pytest.mark.slow
def test_tafto_shows_a_table_and_misses_an_aim(private_server: PrivateServer) -> None:
    aims = ["--aim", "batch=1", "--aim", "lone=1e-9"]
    chosen = ["--measure", "batch", "--measure", "lone"]
    done = bench("tafto", "--uri", private_server.uri, *SMALL, *aims, *chosen)
    assert done.returncode == 3, done.stderr
    assert "MISSED: lone: " in done.stderr
    assert "MISSED: batch" not in done.stderr
    assert {"batch, mails/s", f"lone, send {RATIO}"} <= {
        line.split("  ")[0] for line in done.stdout.splitlines()
    }


def test_a_measure_that_is_not_known_gets_the_nearest_one() -> None:
    done = bench("tafto", "--aim", "task50=3")
    assert done.returncode == 2
    assert "no measure 'task50'; did you mean 'tasks50'?" in done.stderr


@pytest.mark.slow
def test_apart_compares_both_sides(private_server: PrivateServer) -> None:
    size = [*SMALL, "--delay", "2", "--measure", "consumed", "--measure", "lone"]
    figures = runs("apart", "--uri", private_server.uri, *size)
    assert sorted(figures) == [
        "consumed, across", "consumed, one host", "lone, across", "lone, one host",
    ]  # fmt: skip
    assert figures["lone, across"]["send ms p50"] > 4 < figures["lone, across"]["p99"]
    means = json.loads(bench("apart", "--json", "--no-limits", "--uri", private_server.uri,
                             *SMALL, "--measure", "lone").stdout)["settings"]["means"]  # fmt: skip
    spaces = "three network namespaces" if possible() else "one network namespace"
    assert means == f"{spaces}, a TCP proxy with 1 ms per direction"


@pytest.mark.parametrize(
    ("name", "value", "missed"),
    [("batch", 99.0, True), ("batch", 100.0, False), ("lone", 3.1, True), ("lone", 3.0, False)],
)
def test_an_aim_is_the_least_or_the_most(name: str, value: float, missed: bool) -> None:
    figure = RATIO if name == "lone" else RATE
    found = [Result(name, {figure: each}) for each in (1.0, value, 1000.0)]
    assert bool(misses(found, {"batch": 100.0, "lone": 3.0})) == missed
