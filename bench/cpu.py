"""CPU time and memory of process groups, and of the whole machine, by psutil."""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

Groups = dict[str, list[int]]
"""Root processes by the name of their group, which has all their descendants too."""


def _tree() -> dict[int, list[psutil.Process]]:
    """Return the children of each process, by its id."""
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process)
    return children


def _members(
    roots: Iterable[int], children: dict[int, list[psutil.Process]]
) -> dict[int, psutil.Process]:
    known = {process.pid: process for found in children.values() for process in found}
    members: dict[int, psutil.Process] = {}
    todo = [known[pid] for pid in roots if pid in known]
    while todo:
        process = todo.pop()
        if process.pid not in members:
            members[process.pid] = process
            todo += children.get(process.pid, [])
    return members


def members(roots: Iterable[int]) -> set[int]:
    """Return the processes and all their descendants."""
    return set(_members(roots, _tree()))


@dataclass(frozen=True)
class Snapshot:
    """Hold the CPU seconds used so far: by group, and by all of the machine."""

    at: float
    groups: dict[str, float]
    machine: float


def snapshot(groups: Groups) -> Snapshot:
    """Return the CPU time of each group, that of reaped children included."""
    tree = _tree()
    machine = psutil.cpu_times()
    used = {}
    for name, roots in groups.items():
        if roots:
            used[name] = 0.0
            for process in _members(roots, tree).values():
                with suppress(psutil.Error):
                    # of the process, and of its children that have ended
                    used[name] += sum(process.cpu_times()[:4])
    # the first two fields already have the time of virtual machines
    busy = sum(machine[:8]) - machine.idle - machine.iowait
    return Snapshot(time.monotonic(), used, busy)


def written(groups: Groups) -> int:
    """Return the octets that the groups gave to disks so far, with their reaped children."""
    tree = _tree()
    octets = 0
    for roots in groups.values():
        for process in _members(roots, tree).values():
            with suppress(psutil.Error):
                octets += process.io_counters().write_bytes
    return octets


def processes(groups: Groups) -> dict[str, dict[int, float]]:
    """Return the proportional set size in MB of every readable process, by group."""
    tree = _tree()
    found: dict[str, dict[int, float]] = {}
    for name, roots in groups.items():
        sizes: dict[int, float] = {}
        try:
            for pid, process in _members(roots, tree).items():
                with suppress(psutil.NoSuchProcess):
                    if pss := process.memory_full_info().pss:  # 0 for a process that has ended
                        sizes[pid] = pss / (1 << 20)
        except psutil.AccessDenied:
            continue
        if sizes:
            found[name] = sizes
    return found


def memory(groups: Groups) -> dict[str, float]:
    """Return the proportional set size in MB of each group's readable processes."""
    return {name: sum(sizes.values()) for name, sizes in processes(groups).items()}


def settle(groups: Groups, seconds: float = 10.0) -> None:
    """Wait until the groups have started, that is until they use hardly any CPU."""
    end = time.monotonic() + seconds
    before = sum(snapshot(groups).groups.values())
    while time.monotonic() < end:
        time.sleep(0.4)
        now = sum(snapshot(groups).groups.values())
        if now - before <= 0.02:
            return
        before = now
