"""The largest memory of every process of the product while it works."""

import threading
import time
from pathlib import Path
from typing import Any

from bench import cpu

PRODUCT = ("smtpd", "queued", "postgres")
SHARE = 0.05  # of the time, at most, goes into reading: the kernel walks the page tables for it


class Peak(threading.Thread):
    """Reads the proportional set size of all processes every so many seconds until it is ended."""

    def __init__(self, groups: cpu.Groups, every: float) -> None:
        super().__init__(daemon=True)
        self._groups = {name: groups[name] for name in PRODUCT if groups.get(name)}
        self._every = every
        self._over = threading.Event()
        self._largest: dict[int, dict[str, Any]] = {}
        self._totals: dict[str, float] = {}

    def run(self) -> None:
        """Read at once, and again and again."""
        while True:
            began = time.thread_time()
            self._read()
            pause = max(self._every, (time.thread_time() - began) / SHARE)
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
    """Return what the process calls itself, where it does: PostgreSQL's say what they are."""
    try:
        text = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    except OSError:
        return ""
    words = text.split()
    return (
        " ".join(words)[:60]
        if text.startswith("postgres:")
        else Path(words[0]).name
        if words
        else ""
    )
