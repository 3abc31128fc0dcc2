"""Trees of former commits, and daemons of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.daemons import ROOT


def tree_of(commit: str, folder: Path, names: Sequence[str] = ()) -> None:
    """Make the folder with the files of a commit, or those below `names`."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit, *names], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)


def environment_of(tree: Path) -> dict[str, str]:
    """Return variables with which Python runs the modules of a tree, whatever its folder is."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
