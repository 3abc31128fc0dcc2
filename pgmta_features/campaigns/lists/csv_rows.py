"""Rows of a CSV file as a stream (RFC 4180); a bad line is named, and the rest goes on."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TextIO

MAX_CELL_CHARACTERS = 1 << 16
"""A quote without its end swallows no more of the file."""

MAX_ROW_CHARACTERS = 1 << 22
"""For a row with its line ends."""

_ENDS = ("\n", "\r")
_REREAD_FACTOR = 8  # so many characters may be read again for each one of the file


class CsvRow(NamedTuple):
    """A row, or why there is none: the line of its file where it begins, from 1, and its cells.

    A row with line ends in a cell ends in the line `last`.
    """

    line: int
    cells: list[str]
    problem: str = ""
    last: int = 0


class _TooLong(Exception):
    """A row is over MAX_ROW_CHARACTERS."""


class _Lines:
    """The lines of a stream, which remember those of one row.

    A quote without its end makes one row of many lines. They can be read again then.
    """

    def __init__(self, stream: TextIO, first: int) -> None:
        self._readline: Callable[[int], str] = stream.readline
        self._again = deque[str]()
        self._taken: list[str] = []
        self._size = 0
        self._credit = MAX_CELL_CHARACTERS  # characters that may be read again
        self.number = first  # number of the line where the row begins

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._again:
            line = self._again.popleft()
        else:
            line = self._readline(MAX_ROW_CHARACTERS)
            if not line:
                raise StopIteration
            self._credit += _REREAD_FACTOR * len(line)
        self._size += len(line)
        if self._size >= MAX_ROW_CHARACTERS:
            if not self._taken:
                self._skip(line)
                self._taken.append("")
            else:
                self._again.appendleft(line)
            raise _TooLong
        self._taken.append(line)
        return line

    @property
    def last(self) -> int:
        """The line in which the row ends."""
        return self.number + len(self._taken) - 1

    def begin(self) -> None:
        """Begin the next row."""
        self.number += len(self._taken)
        self._taken.clear()
        self._size = 0

    def keep_first(self) -> None:
        """Give back all lines of the row but its first one.

        Then each of the others may begin such a row too. The time of a file is in proportion to its
        size, so this ends when too much was read again. All lines of the row go then.
        """
        if self._credit >= self._size:
            self._credit -= self._size
            self._again.extendleft(reversed(self._taken[1:]))
            del self._taken[1:]

    def _skip(self, part: str) -> None:
        """Read to the end of a line of which this is a part."""
        while part and not part.endswith(_ENDS):
            part = self._readline(MAX_ROW_CHARACTERS)


def read_rows(stream: TextIO, separator: str = ",", first: int = 1) -> Iterator[CsvRow]:
    """Yield the rows of a stream that was opened with newline="", and begins with line `first`.

    Blank lines are left out. A row that is no CSV costs its first line alone: the others are read
    again, because a quote may be missing. Only the cells of one row are in memory.
    """
    csv.field_size_limit(MAX_CELL_CHARACTERS)  # the module's limit holds for the whole process
    lines = _Lines(stream, first)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        lines.begin()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, _TooLong) as error:
            lines.keep_first()
            yield CsvRow(lines.number, [], _reason(error), lines.last)
            continue
        if cells:
            yield CsvRow(lines.number, cells, last=lines.last)


def _reason(error: Exception) -> str:
    text = str(error)
    if isinstance(error, _TooLong):
        return f"the row is over {MAX_ROW_CHARACTERS} characters"
    if "field larger" in text:
        return f"a cell is over {MAX_CELL_CHARACTERS} characters, or a quote has no end"
    if "unexpected end" in text:
        return "a quote has no end"
    if "expected after" in text:
        return "there is text behind the quote that ends a cell"
    return text
