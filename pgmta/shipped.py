"""Find the folders that are shipped with the package: `sql` and `etc`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pgmta.errors import PgmtaError

_PACKAGE = Path(__file__).parent


@cache
def shipped(name: str) -> Path:
    """Return the folder `name` of this version: in the package, or else beside it.

    In the repository `pgmta/NAME` is a symbolic link to `../NAME`. A checkout without symbolic
    links (core.symlinks=false) has a small file there, so the folder beside the package is taken.
    Raises PgmtaError if neither exists: the distribution was built from such a checkout.
    """
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise PgmtaError(
        f"this installation of pgmta has no folder {name!r}: it was built from a checkout "
        "without symbolic links; build it again after `git config core.symlinks true`"
    )
