"""A next hop's script that notes when mail begins."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from tests.support.nexthop import Do, Transaction


class MailClock:
    """Notes the time of each MAIL, by its sender."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    def __call__(self, point: str, line: str, transaction: Transaction | None) -> Do | None:
        if point == "MAIL":
            sender = line[line.index("<") + 1 : line.index(">")]
            self.times[sender].append(time.monotonic())
        return None

    def has(self, sender: str, number: int) -> bool:
        """Return whether it has begun that many mails."""
        return len(self.times[sender]) >= number

    def most(self, sender: str, seconds: float = 0.95) -> int:
        """Return its most mails in any window: a second, less the jitter of this program."""
        times = sorted(self.times[sender])
        return max((bisect_left(times, at + seconds) - n for n, at in enumerate(times)), default=0)


def shaping(folder: Path, *routes: dict[str, Any]) -> str:
    """Write the file, and return its path."""
    file = folder / "shaping.yaml"
    file.write_text(yaml.safe_dump({"routes": routes}), encoding="utf-8")
    return str(file)
