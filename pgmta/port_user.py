"""The process that has a TCP port, as far as /proc shows it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from pgmta.errors import system_reason

_LISTENING_STATE = "0A"  # of a socket in /proc/net/tcp
_SHOWN_CHARACTERS = 60  # of a command line
_PROC = Path("/proc")


def bind_problem(error: OSError, port: int) -> str:
    """Return why a port can't be had, and the process that listens on it.

    Only root sees processes of other users.
    """
    return system_reason(error) + (_user(port) if error.errno == errno.EADDRINUSE else "")


def _user(port: int) -> str:
    wanted = {f"socket:[{number}]" for number in _inodes(port)}
    processes = sorted(int(entry.name) for entry in _PROC.glob("[0-9]*")) if wanted else []
    for pid in processes:  # in order, so a parent comes before its children
        with suppress(OSError), os.scandir(_PROC / str(pid) / "fd") as links:
            for link in links:
                with suppress(OSError):
                    if os.readlink(link) in wanted:
                        return f": {_named(pid)} has it"
    return ": a process of another user has it" if wanted else ""


def _named(pid: int) -> str:
    arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    command = " ".join(each.decode(errors="replace") for each in arguments).strip()
    if len(command) > _SHOWN_CHARACTERS:
        command = command[:_SHOWN_CHARACTERS] + "…"
    return f"pid {pid} ({command})"


def _inodes(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on the port, at any address."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes
