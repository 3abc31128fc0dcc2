"""A copy of PostgreSQL's programs for a user who can't reach those of the virtual environment."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

from pgmta.errors import ServerRefused
from pgmta.postgres.embedded.folders import make_parents, open_shared

PLACE = Path("/var/cache/pgmta")
"""The folder of the copies. Only root writes it; it may be removed if no embedded server runs."""

_LEFT_OUT = "include"
_FOLDER, _PROGRAM, _FILE = 0o755, 0o755, 0o644  # whatever the umask was


def copied(programs: Path) -> Path:
    """Return the folder of a copy of `programs` that each user may run, and make it if needed.

    The copy is named by its content. One process at a time makes it under another name and
    renames it, so that no half one is used. Raises ServerRefused.
    """
    try:
        digest = _digest(programs)
        make_parents(PLACE.parent)
        place = open_shared(PLACE)
        try:
            fcntl.flock(place, fcntl.LOCK_EX)
            copy = PLACE / f"postgresql-{digest[:16]}"
            if not copy.exists():
                _copy(programs, copy)
        finally:
            os.close(place)
    except OSError as error:
        raise ServerRefused(
            f"can't copy the programs of PostgreSQL to {PLACE}: {error.strerror or error}"
        ) from None
    return copy / programs.relative_to(_root(programs))


def _root(programs: Path) -> Path:
    """Return the folder above the wheel's: its package and its libraries are side by side."""
    return programs.parents[2]


def _parts(programs: Path) -> list[Path]:
    package = programs.parents[1]
    return [programs.parent, package.with_name(f"{package.name}.libs")]


def _copy(programs: Path, target: Path) -> None:
    new = target.with_name("new")
    if new.exists():
        shutil.rmtree(new)
    for part in _parts(programs):
        place = new / part.relative_to(_root(programs))
        shutil.copytree(part, place, ignore=shutil.ignore_patterns(_LEFT_OUT))
    for folder, _, names in os.walk(new):
        os.chmod(folder, _FOLDER)
        for path in (Path(folder, name) for name in names):
            path.chmod(_PROGRAM if os.access(path, os.X_OK) else _FILE)
    os.sync()  # a power cut leaves no copy without content under the name of its content
    new.rename(target)


@cache
def _digest(programs: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for part in _parts(programs) for path in part.rglob("*")):
        name = path.relative_to(_root(programs))
        if path.is_file() and _LEFT_OUT not in name.parts:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{content} {name}\n".encode())
    return digest.hexdigest()
