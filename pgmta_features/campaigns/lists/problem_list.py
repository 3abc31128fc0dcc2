"""The lines that an import leaves out: the first ones to stderr, and all into a file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from pgmta.command import print_line, shorten

MAX_SHOWN_LINES = 20
"""So many go to stderr."""

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
        if self._number <= MAX_SHOWN_LINES:
            print_line(f"{self._name}:{line}: {reason}", err=True)

    def end(self) -> None:
        """Say how many lines were not shown."""
        if self._number > MAX_SHOWN_LINES:
            more = self._number - MAX_SHOWN_LINES
            where = self._file.name if self._file else "--errors FILE"
            print_line(f"{self._name}: {more:,} more; {where} has all", err=True)


@contextmanager
def problem_list(name: str, path: Path | None) -> Iterator[ProblemList]:
    """Open the list. Its file is CSV in UTF-8 with the columns line and problem."""
    with ExitStack() as stack:
        file = None
        if path:
            opened = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
            file = stack.enter_context(opened)
        problems = ProblemList(name, file)
        yield problems
        problems.end()
