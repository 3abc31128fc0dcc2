"""The commands of bench/: their names, and what they say before anything starts."""

import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import ROOT

FILES = [path for path in (ROOT / "bench").iterdir() if path.is_file()]
COMMANDS = sorted(path.name for path in FILES if not path.suffix)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_the_name_of_the_command(name: str) -> None:
    assert run(f"bench/{name}", "--help").stdout.startswith(f"Usage: bench/{name} [OPTIONS]\n")


def test_a_checkout_without_its_environment_is_told_first(tmp_path: Path) -> None:
    done = run("bench/guard", "--against", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path} has no .venv: run `make .venv/.dev` there\n"
