"""Control groups of the bench: who is in one has its CPU counted, with all it ever starts."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

REMOVE_WITHIN = 5.0


def place() -> Path | None:
    """Return the cgroup (version 2) of this process if groups can be made in it."""
    own = ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            own = line.removeprefix("0::").strip("/")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind = line.split()[:3]
        if kind == "cgroup2" and (Path(point) / own / "cpu.stat").exists():
            if os.access(Path(point) / own, os.W_OK):
                return Path(point) / own
            break
    return None


class Cgroup:
    """One control group."""

    def __init__(self, parent: Path, name: str) -> None:
        self.path = parent / f"pgmta-bench-{os.getpid()}-{name}"
        self.path.mkdir()

    def members(self) -> set[int]:
        """Return the processes in it."""
        return {int(pid) for pid in (self.path / "cgroup.procs").read_text().split()}

    def adopt(self, pids: Iterable[int]) -> None:
        """Move processes into it; what they start later is born there."""
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended
                (self.path / "cgroup.procs").write_text(str(pid))

    def seconds(self) -> float:
        """Return the CPU time that was used in it."""
        for line in (self.path / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec"):
                return int(line.split()[1]) / 1e6
        return 0.0

    def release(self) -> None:
        """Move all processes back to the group of the bench, and remove this group.

        The move repeats until no process is left, because a process that is forked while its
        parent moves stays behind.
        """
        self._remove(lambda pid: (self.path.parent / "cgroup.procs").write_text(str(pid)))

    def close(self) -> None:
        """Kill the processes that stayed behind, and remove the group."""
        self._remove(lambda pid: os.kill(pid, signal.SIGKILL))

    def _remove(self, clear: Callable[[int], object]) -> None:
        end = time.monotonic() + REMOVE_WITHIN
        while time.monotonic() < end:
            for pid in self.members():
                with contextlib.suppress(OSError):
                    clear(pid)
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)
