"""Consumption of a server at work: CPU by group, peak memory, writes to the disk."""

import contextlib
import os
import time
from pathlib import Path

from bench import cpu
from bench.peer.cgroup import Cgroup, place

FIRST, EVERY, MOST = 0.5, 1.5, 4  # samples of memory: reading many small processes costs CPU
SECTOR = 512


def disk_written(directory: Path) -> int | None:
    """Return the bytes that the disk below the directory has taken in; None if unknown.

    The figure is of the whole disk. The journal of the file system is most of the cost of a queue
    of files. Neither io.stat nor /proc/PID/io counts it. The latter also counts a whole large
    folio for 8 KB changed in it (Linux 6.18: thirty times PostgreSQL's WAL).
    """
    device = directory.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return int(fields[9]) * SECTOR
    return None


class Meter:
    """Meters the processes of one server during one cell."""

    def __init__(self, groups: cpu.Groups, directory: Path) -> None:
        self.groups = groups
        self.directory = directory
        self.cgroups: dict[str, Cgroup] = {}
        self.peak: dict[str, float] = {}
        self._next = 0.0
        self._taken = 0
        parent = place()
        if parent:
            with contextlib.suppress(OSError):
                for name in groups:
                    self.cgroups[name] = Cgroup(parent, name)
        for name, cgroup in self.cgroups.items():
            # twice: a process may fork before it is moved
            cgroup.adopt(cpu.members(groups[name]))
            cgroup.adopt(cpu.members(groups[name]) - cgroup.members())

    def close(self) -> None:
        """Remove the cgroups, with whatever a server left behind in them.

        A server was stopped before; a first process that still lives is PostgreSQL's, for the
        next cell.
        """
        for name, cgroup in self.cgroups.items():
            if any(Path(f"/proc/{pid}").exists() for pid in self.groups[name]):
                cgroup.release()
            else:
                cgroup.close()

    def members(self, name: str) -> set[int]:
        """Return the processes of a group."""
        found = cpu.members(self.groups[name])
        if name in self.cgroups:
            found |= self.cgroups[name].members()
        return found

    def seconds(self) -> dict[str, float]:
        """Return the CPU time of the groups that have a cgroup."""
        return {name: cgroup.seconds() for name, cgroup in self.cgroups.items()}

    def begin(self) -> None:
        """Note that the load begins."""
        self._next = time.monotonic() + FIRST

    def tick(self) -> None:
        """Take a sample of memory if it is time to."""
        if self._taken < MOST and time.monotonic() >= self._next:
            self.sample()
            self._next = time.monotonic() + EVERY

    def sample(self) -> None:
        """Take a sample of memory."""
        self._taken += 1
        sizes = cpu.memory({name: sorted(self.members(name)) for name in self.groups})
        for name, size in (sizes | {"": sum(sizes.values())}).items():
            self.peak[name] = max(self.peak.get(name, 0.0), size)
