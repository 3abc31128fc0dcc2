"""A disk that takes longer for each sync, for all processes that the bench starts afterwards."""

import os
import shutil
from pathlib import Path

from bench.peer.package import Unavailable, run

VARIABLE = "LD_PRELOAD"


def slow_sync(milliseconds: int, directory: Path) -> None:
    """Make each fsync and fdatasync take longer. Raises Unavailable without a C compiler."""
    compiler = shutil.which("cc")
    if not compiler:
        raise Unavailable("--sync-ms needs cc, a C compiler")
    source, library = Path(__file__).parents[1] / "slow_sync.c", directory / "slow_sync.so"
    pause = f"-DPAUSE_MS={milliseconds}"
    run([compiler, "-shared", "-fPIC", "-O2", pause, "-o", library, source])
    library.chmod(0o755)  # each server has another user
    os.environ[VARIABLE] = str(library)
