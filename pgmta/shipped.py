"""Find the folders that are shipped with the package: `sql` and `etc`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Return the folder `name` of this version: in the package of a wheel, else beside it."""
    folder = _PACKAGE / name
    return folder if folder.is_dir() else _PACKAGE.parent / name
