"""Targets of the Makefile that need a program."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import ROOT


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_lock_without_uv_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(shutil.which("make")), "lock"], cwd=ROOT, env={"PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr.startswith("make lock needs uv, which is not installed\n")
