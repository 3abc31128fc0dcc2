"""Progress on standard error: a line now and then."""

import sys
import time

INTERVAL_S = 2.0


def log(text: str) -> None:
    """Say something on standard error."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Shows how much of the total is done."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self.started = self.shown = time.monotonic()

    def show(self, done: int) -> None:
        """Show the new state, if it is time to."""
        self.done = done
        if time.monotonic() - self.shown >= INTERVAL_S:
            self.end()

    def end(self) -> None:
        """Show the last state."""
        self.shown = time.monotonic()
        rate = self.done / max(0.001, self.shown - self.started)
        log(f"{self.label}: {self.done}/{self.total} {rate:.0f}/s")
