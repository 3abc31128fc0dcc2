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


def before_last_migration() -> str:
    """Return the last commit with fewer migrations and no other one, '' if git knows none.

    A commit on the way to these migrations does not count: it had some with another name or text.
    """
    files = sorted((ROOT / "sql" / "migrations").glob("*.sql"))
    known = {(_git("hash-object", str(file)), file.name) for file in files}
    for commit in _git("log", "--format=%H", "--", "sql/migrations").split():
        lines = _git("ls-tree", "--format=%(objectname) %(path)", f"{commit}:sql/migrations")
        there = {(blob, name) for blob, name in map(str.split, lines.splitlines())}
        if there and there < known:
            return commit
    return ""


def environment_of(tree: Path) -> dict[str, str]:
    """Return variables with which Python runs the modules of a tree, whatever its folder is."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
