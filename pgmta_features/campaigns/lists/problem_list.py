"""The lines that an import leaves out: into a file, or the first ones to stderr."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pgmta.command import print_line, shorten

MAX_SHOWN_LINES = 20
"""So many go to stderr, if there is no file for the list."""

_MAX_REASON_CHARACTERS = 300


class ProblemList:
    """Lists lines with their reasons; `name` is that of the list on stderr."""

    def __init__(self, name: str, file: TextIO | None) -> None:
        self._name = name
        self._file = file
        self._writer = csv.writer(file, lineterminator="\n") if file else None
        self._number = 0
        if self._writer:
            self._writer.writerow(("line", "problem"))

    def add(self, line: int, reason: str) -> None:
        """List a line."""
        self._number += 1
        reason = shorten(reason, _MAX_REASON_CHARACTERS)
        if self._writer:
            self._writer.writerow((line, reason))
        elif self._number <= MAX_SHOWN_LINES:
            print_line(f"{self._name}:{line}: {reason}", err=True)

    def end(self) -> None:
        """Say how many lines were not shown."""
        if not self._writer and self._number > MAX_SHOWN_LINES:
            more = self._number - MAX_SHOWN_LINES
            print_line(f"{self._name}: {more:,} more; --errors FILE has all", err=True)


@contextmanager
def problem_list(name: str, path: Path | None) -> Iterator[ProblemList]:
    """Open the list: CSV with the columns line and problem in a file, or else stderr."""
    if path is None:
        problems = ProblemList(name, None)
        yield problems
        problems.end()
        return
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        yield ProblemList(name, file)
