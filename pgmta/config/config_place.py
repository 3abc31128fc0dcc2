"""Where a configuration file is, if no option names it."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PGMTA_CONFIG"
"""Environment variable with a file, or with a folder that has the files."""

SYSTEM = Path("/etc/pgmta")
"""The folder of an installation."""

LOCAL = Path("etc")
"""The folder of a checkout, in the current folder."""


def config_places(name: str) -> list[Path]:
    """Return the places of the file `name`, in the order in which they count.

    If PGMTA_CONFIG is set, it is the only one: a typing mistake there leads to no other queue.
    """
    if named := os.environ.get(VARIABLE):
        place = Path(named)
        return [place / name if place.is_dir() else place]
    return [SYSTEM / name, LOCAL / name]


def find_config(name: str) -> Path | None:
    """Return the first place that has the file; None if there is none.

    A folder that this user can't enter counts as one without the file.
    """
    for place in config_places(name):
        try:
            if place.exists():
                return place
        except OSError:
            continue
    return None
