"""The coverage-guided fuzzer, for some seconds: `--fuzz-seconds N`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLACK = 60.0  # seconds to begin and to end


@pytest.mark.needs("atheris")
@pytest.mark.timeout(0)
def test_coverage_guided(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """`PGMTA_FUZZ_FOLDER` keeps its scripts for the next run."""
    seconds = pytestconfig.getoption("fuzz_seconds")
    folder = Path(os.environ.get("PGMTA_FUZZ_FOLDER") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    # behind a shell: a child of this large process would begin with its size, as the kernel counts
    command = [
        "sh", "-c", '"$@"; exit $?', "sh",
        sys.executable, "-m", "tests.fuzz.coverage_guided", f"{seconds:.0f}", str(folder),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=log, timeout=seconds + SLACK, check=False
        )
    text = (folder / "log").read_text(errors="replace")
    assert not done.returncode, text[-6000:]
    assert "stat::number_of_executed_units:" in text
