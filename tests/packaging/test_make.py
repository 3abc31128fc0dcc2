"""The start of `make`: if something is missing, one line names it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import ROOT
from tests.support.database import data_folder
from tests.support.waiting import PATIENCE


def errors(folder: Path, *command: str | Path, user: str | None = None, **variables: str) -> str:
    """Return what a command that fails says to its user."""
    done = subprocess.run(
        command, cwd=folder, env={"PATH": os.environ["PATH"], **variables}, user=user,
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("target", ["run", "test", "lint"])
def test_a_checkout_that_the_user_cannot_write(target: str) -> None:
    folder = data_folder()
    shutil.copy(ROOT / "Makefile", folder)
    folder.chmod(0o555)
    other = "nobody" if os.geteuid() == 0 else None
    lines = errors(folder, "make", target, user=other).splitlines()
    folder.chmod(0o755)
    shutil.rmtree(folder)
    assert f"can't write to {folder}: run make as the owner, or in a copy of your own" in lines[0]
    assert len(lines) == 2  # the other is make's


def test_a_python_is_found_or_asked_for(tmp_path: Path) -> None:
    find = ROOT / "scripts" / "find-python"
    (named := tmp_path / "a python").symlink_to(sys.executable)
    found = subprocess.check_output([find], env={"PATH": "", "PYTHON": str(named)}, text=True)
    assert found.strip() == str(named)
    for python in ("", "/bin/false"):
        said = errors(tmp_path, find, PATH=str(tmp_path), HOME=str(tmp_path), PYTHON=python)
        assert said.startswith("pgmta needs Python 3.12 or newer with venv: install one")
        assert said.count("\n") == 1


def test_a_python_with_profiles_is_preferred(tmp_path: Path) -> None:
    find = ROOT / "scripts" / "find-python"
    for name, built in (("python3.13", ""), ("python3.12", "--enable-optimizations")):
        (path := tmp_path / name).write_text(
            "#!/bin/sh\n"
            f'case "$2" in *sysconfig*) [ -n "{built}" ];; *executable*) echo "$0";; esac\n'
        )
        path.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([find], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/python3.12\n", "")
    (tmp_path / "python3.12").unlink()
    named = {**environment, "PYTHON": str(tmp_path / "python3.13")}
    done = subprocess.run([find], env=named, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/python3.13\n"
    assert done.stderr.startswith(f"{tmp_path}/python3.13 was built without profiles (PGO)")
