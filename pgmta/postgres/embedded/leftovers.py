"""Leftovers of a killed embedded server: files, and processes that outlive their postmaster."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path

from pgmta.errors import StoreUnavailable
from pgmta.postgres.embedded.folders import locked

SOCKET = ".s.PGSQL.5432"
"""Name of the UNIX socket."""

_LOOK = 0.05  # seconds between two tries to get the lock
_ORPHANS = 1.0  # seconds for the processes of a dead postmaster to end by themselves
_KILLED = 5.0  # seconds for them to end by SIGKILL


def remove_leftovers(data: Path, sockets: Path) -> None:
    """Remove the files of a killed server; its lock has shown that no process of it lives.

    PostgreSQL itself trusts a leftover file if another process has its number by now. It refuses
    to start because of a file that a full disk left empty.
    """
    for path in (data / "postmaster.pid", sockets / f"{SOCKET}.lock", sockets / SOCKET):
        path.unlink(missing_ok=True)


def end_orphans(data: Path, lock: int, path: Path) -> None:
    """Wait for processes on `data` that have outlived their postmaster, and kill the others.

    Their `lock` is the open file `path`. Raises StoreUnavailable if one does not end.
    """
    if _released(lock, _ORPHANS):
        return
    for number in _orphans(data):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    if not _released(lock, _KILLED):
        names = shlex.join(["fuser", str(path)])
        raise StoreUnavailable(
            f"processes of an earlier server still work on {data}: `{names}` names them"
        )


def _orphans(data: Path) -> list[int]:
    status, found = data.stat(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            here = os.path.samestat((entry / "cwd").stat(), status)
            if here and (entry / "comm").read_text().strip() == "postgres":
                found.append(int(entry.name))
    return found


def _released(lock: int, seconds: float) -> bool:
    """Return whether all processes let go of the lock within that time."""
    end = time.monotonic() + seconds
    while not locked(lock):
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK)
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
