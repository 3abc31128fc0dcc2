"""Progress on standard error: a bar on a terminal, else a line now and then."""

import sys
import time

WIDTH = 40
EVERY = 2.0


def log(text: str) -> None:
    """Say something on standard error."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Shows how much of the total is done."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self.terminal = sys.stderr.isatty()
        self.started = self.shown = time.monotonic()

    def show(self, done: int) -> None:
        """Show the new state, if it is time to."""
        self.done = done
        now = time.monotonic()
        if self.terminal:
            filled = WIDTH * done // max(1, self.total)
            bar = "#" * filled + "." * (WIDTH - filled)
            print(f"\r{self.label:8} [{bar}] {self._numbers(now)}", end="", file=sys.stderr)
            sys.stderr.flush()
        elif now - self.shown >= EVERY:
            log(f"{self.label}: {self._numbers(now)}")
            self.shown = now

    def _numbers(self, now: float) -> str:
        rate = self.done / max(0.001, now - self.started)
        return f"{self.done}/{self.total} {rate:.0f}/s"

    def end(self) -> None:
        """Show the last state."""
        if self.terminal:
            self.show(self.done)
            print(file=sys.stderr)
        else:
            log(f"{self.label}: {self._numbers(time.monotonic())}")
