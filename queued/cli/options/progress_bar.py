"""The progress of long work on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pgmta.command import age, print_line, redraw_line

_BAR_CHARACTERS = 30
_REDRAW_INTERVAL_S = 0.1
_LINE_INTERVAL_S = 5.0  # if there is no terminal


class ProgressBar:
    """Shows how far the work `label` is, its rate per second, and the time that is left.

    `length` is that of the whole work in any unit, None for an unknown one. `things` are counted.
    """

    def __init__(self, label: str, length: int | None, things: str) -> None:
        self._label, self._length, self._things = label, length, things
        self._terminal = sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()

    def show(self, done: int, number: int) -> None:
        """Take in how far the work is: `done` of the length, and `number` things."""
        now = time.monotonic()
        if now - self._shown < (_REDRAW_INTERVAL_S if self._terminal else _LINE_INTERVAL_S):
            return
        self._shown = now
        text = self.text(done, number, now - self._begun)
        if self._terminal:
            redraw_line(text, err=True)
        else:
            print_line(text, err=True)

    def text(self, done: int, number: int, seconds: float) -> str:
        """Return the line that is shown after these seconds."""
        rate = number / seconds if seconds > 0 else 0.0
        counted = f"{number:,} {self._things}, {rate:,.0f}/s"
        if not self._length:
            return f"{self._label} {counted}"
        share = min(1.0, done / self._length)
        filled = int(share * _BAR_CHARACTERS)
        left = f", {age(seconds / share - seconds)} left" if share else ""
        bar = "#" * filled + "-" * (_BAR_CHARACTERS - filled)
        return f"{self._label} [{bar}] {share:4.0%} {counted}{left}"

    def end(self) -> None:
        """Take the bar away."""
        if self._terminal:
            redraw_line("", err=True)


@contextmanager
def progress_bar(label: str, length: int | None, things: str) -> Iterator[ProgressBar]:
    """Show progress until the work ends."""
    bar = ProgressBar(label, length, things)
    try:
        yield bar
    finally:
        bar.end()
