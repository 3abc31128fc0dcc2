"""Where a configuration file is, if no option names it."""

from __future__ import annotations

import os
from pathlib import Path

CONFIG_VARIABLE = "PGMTA_CONFIG"
"""Environment variable with a file, or with a folder that has the files."""

SYSTEM_FOLDER = Path("/etc/pgmta")
"""The folder of an installation."""

LOCAL_FOLDER = Path("etc")
"""The folder of a checkout, in the current folder."""


def config_paths(name: str) -> list[Path]:
    """Return the paths where the file `name` may be, in the order in which they count.

    If PGMTA_CONFIG is set, it is the only one: a typing mistake there leads to no other queue.
    """
    if named := os.environ.get(CONFIG_VARIABLE):
        place = Path(named)
        return [place / name if place.is_dir() else place]
    return [SYSTEM_FOLDER / name, LOCAL_FOLDER / name]


def find_config(name: str) -> Path | None:
    """Return the first path that has the file; None if there is none.

    A folder that this user can't enter counts as one without the file.
    """
    for path in config_paths(name):
        try:
            if path.exists():
                return path
        except OSError:
            continue
    return None
