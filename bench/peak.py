"""Peak memory of every process of the product while it works."""

import threading
import time
from pathlib import Path
from typing import Any

import psutil

from bench import cpu

MAX_READING_SHARE = 0.05  # of the time, because each read walks page tables


class Peak(threading.Thread):
    """Read the proportional set size of all processes every `every` seconds until `end`."""

    def __init__(self, groups: cpu.Groups, every: float) -> None:
        super().__init__(daemon=True)
        self._groups = {name: roots for name, roots in groups.items() if roots}
        self._every = every
        self._over = threading.Event()
        self._largest: dict[int, dict[str, Any]] = {}
        self._totals: dict[str, float] = {}

    def run(self) -> None:
        """Read at once and then periodically."""
        while True:
            began = time.thread_time()
            self._read()
            pause = max(self._every, (time.thread_time() - began) / MAX_READING_SHARE)
            if self._over.wait(pause):
                return

    def _read(self) -> None:
        found = cpu.processes(self._groups)
        for group, sizes in found.items():
            for pid, size in sizes.items():
                if size > self._largest.get(pid, {}).get("MB", 0.0):
                    entry = {"group": group, "pid": pid, "what": title(pid), "MB": size}
                    self._largest[pid] = entry
        totals = {group: sum(sizes.values()) for group, sizes in found.items()}
        totals["product"] = sum(totals.values())
        for name, total in totals.items():
            self._totals[name] = max(total, self._totals.get(name, 0.0))

    def end(self) -> None:
        """Stop reading."""
        self._over.set()
        self.join()

    def processes(self) -> list[dict[str, Any]]:
        """Return every process that was seen, with its peak, the largest first."""
        return sorted(self._largest.values(), key=lambda entry: -entry["MB"])

    def figures(self) -> dict[str, float]:
        """Return the peaks of each group's sum, of all together, and of each group's largest."""
        figures = {f"peak MB {name}": total for name, total in self._totals.items()}
        for entry in reversed(self.processes()):
            figures[f"largest process MB {entry['group']}"] = entry["MB"]
        return figures


def title(pid: int) -> str:
    """Return the name of a process; PostgreSQL's processes write their work into their titles."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return ""
    if words and words[0].startswith("postgres:"):
        return " ".join(" ".join(words).split())[:60]
    return Path(words[0].split()[0]).name if words and words[0].split() else ""
