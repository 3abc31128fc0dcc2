"""Benchmark commands, once with small numbers: they run, count and compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.support.database import PrivateServer

ROOT = Path(__file__).resolve().parents[2]


def bench(name: str, *words: str) -> Any:
    """Run the command to its end, which has to be a good one, and return its JSON."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / name), "--json", *words],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_scale_measures_a_backlog_and_plots_what_it_saved(
    private_server: PrivateServer, tmp_path: Path
) -> None:
    saved, chart = tmp_path / "scale.json", tmp_path / "scale.svg"
    size = ["--values", "500", "--rounds", "1", "--messages", "50", "--processes", "1"]
    size += ["--urgent-seconds", "0.5", "--urgent-domains", "50"]
    shown = bench(
        "scale", "--uri", private_server.uri, *size, "--observe", "0.1", "--save", str(saved)
    )
    (cell,) = shown["cells"]
    assert (cell["value"], cell["messages"], cell["problems"]) == (500, 50, [])
    figures = cell["figures"]
    for name in ("messages/s", "delivery ms p99", "front ms", "walk buffers", "peak MB queued"):
        assert figures[name] > 0, name
    for name in ("urgent", "urgent, hanging"):
        assert figures[f"{name} ms p99"] > 0
        assert figures[f"{name} missing"] == 0
    assert {"smtpd", "queued"} <= {process["group"] for process in cell["processes"]}
    assert bench("scale", "--from", str(saved), "--plot", str(chart)) == shown
    assert len(ElementTree.parse(chart).findall(".//{*}circle")) >= 3


def test_tafto_produces_and_consumes(private_server: PrivateServer) -> None:
    shown = bench(
        "tafto", "--uri", private_server.uri, "--messages", "250", "--runs", "1", "--aim", "0"
    )
    (run,) = shown["runs"]
    assert run["problems"] == []
    assert set(run["seconds"]) == {"producer", "consumer"}
