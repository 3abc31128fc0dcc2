"""Benchmark commands, once with small numbers: they run, count and compare."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.database import PrivateServer

ROOT = Path(__file__).resolve().parents[2]


def bench(name: str, *words: str) -> Any:
    """Run the command to its end, which has to be a good one, and return its JSON."""
    done = subprocess.run(
        [ROOT / "bench" / name, "--json", *words],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_scale_measures_a_backlog(private_server: PrivateServer) -> None:
    size = ["--values", "500", "--rounds", "1", "--messages", "50", "--processes", "1"]
    shown = bench("scale", "--uri", private_server.uri, *size, "--observe", "0.1")
    (run,) = shown["runs"]
    assert (run["phase"], run["problems"]) == ("backlog 500", [])
    for name in ("messages/s", "ratio", "delivery ms p99", "peak MB queued"):
        assert run["figures"][name] > 0, name
    assert {"smtpd", "queued"} <= {process["group"] for process in run["processes"]}


@pytest.mark.slow
def test_composed_mail_arrives_in_each_form(private_server: PrivateServer) -> None:
    size = ["--messages", "20", "--rounds", "1", "--templates", "3", "--no-limits"]
    shown = bench("composed", "--uri", private_server.uri, *size, "--umlauts")
    phases = {run["phase"]: run["figures"] for run in shown["runs"]}
    assert phases["compose umlauts"].keys() == {"parts, messages/s", "template, messages/s"}
    assert phases["parts"]["relay, ratio to raw"] > 0 < phases["templates"]["relay, messages/s"]


@pytest.mark.slow
def test_stops_leave_nothing_unsettled(private_server: PrivateServer) -> None:
    size = ["--rows", "40000", "--stops", "3", "--every", "1", "--lease", "3s"]
    figures = bench("stops", "--uri", private_server.uri, *size)["figures"]
    assert figures["sent before the kill"] > 0 == figures["sent twice before the kill"]
    assert figures["outcomes: settled"] > 0 < figures["outcomes: not settled"]
    assert figures["exits"] == 7


@pytest.mark.slow
def test_scheduled_mail_is_late_and_never_early(private_server: PrivateServer) -> None:
    size = ["--rows", "300", "--messages", "30", "--pairs", "1", "--due", "50", "--single", "3"]
    shown = bench("scheduled", "--uri", private_server.uri, *size, "--no-limits")
    figures = {one["name"]: one["value"] for one in shown["figures"]}
    assert figures["claim by time, ratio without messages"] == pytest.approx(1, abs=0.05)
    assert figures["claim by domain, buffers without rows"] > 100
    assert figures["ms until the first of all"] >= 0
    assert figures["single, ms late p50"] < 10_000
