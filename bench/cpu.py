"""CPU time and memory of process groups, and of the whole machine, from /proc."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")


def _stats() -> dict[int, tuple[int, float]]:
    """Return for each process its parent and its CPU seconds with those of reaped children."""
    found: dict[int, tuple[int, float]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks = sum(int(value) for value in fields[11:15])
                found[int(entry.name)] = (int(fields[1]), ticks / TICK)
    return found


def _members(roots: Iterable[int], stats: dict[int, tuple[int, float]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    members: set[int] = set()
    todo = [pid for pid in roots if pid in stats]
    while todo:
        pid = todo.pop()
        if pid not in members:
            members.add(pid)
            todo += children.get(pid, [])
    return members


Groups = dict[str, list[int]]


def members(roots: Iterable[int]) -> set[int]:
    """Return the processes and all their descendants."""
    return _members(roots, _stats())


@dataclass(frozen=True)
class Snapshot:
    """CPU seconds used so far: by group, and by all of the machine."""

    at: float
    groups: dict[str, float]
    machine: float


def snapshot(groups: Groups) -> Snapshot:
    """Read the CPU time of each group: its root processes and all their descendants."""
    stats = _stats()
    with (PROC / "stat").open() as file:
        fields = [int(value) for value in file.readline().split()[1:9]]
    busy = sum(fields) - fields[3] - fields[4]
    return Snapshot(
        time.monotonic(),
        {
            name: sum(stats[pid][1] for pid in _members(roots, stats))
            for name, roots in groups.items()
            if roots
        },
        busy / TICK,
    )


def processes(groups: Groups) -> dict[str, dict[int, float]]:
    """Return the proportional set size in MB of every process, by group, where it can be read."""
    stats = _stats()
    found: dict[str, dict[int, float]] = {}
    for name, roots in groups.items():
        sizes: dict[int, float] = {}
        try:
            for pid in _members(roots, stats):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                        if line.startswith("Pss:"):
                            sizes[pid] = int(line.split()[1]) / 1024
        except OSError:
            continue
        if sizes:
            found[name] = sizes
    return found


def memory(groups: Groups) -> dict[str, float]:
    """Return the proportional set size of each group in MB, where it can be read."""
    return {name: sum(sizes.values()) for name, sizes in processes(groups).items()}


def settle(groups: Groups, seconds: float = 10.0) -> None:
    """Wait until the groups have started up, that is until they use hardly any CPU."""
    end = time.monotonic() + seconds
    before = sum(snapshot(groups).groups.values())
    while time.monotonic() < end:
        time.sleep(0.4)
        now = sum(snapshot(groups).groups.values())
        if now - before <= 0.02:
            return
        before = now
