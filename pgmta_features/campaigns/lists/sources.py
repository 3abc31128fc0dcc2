"""Where a list comes from: a file with CSV, or a query on the caller's own connection."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from pgmta.errors import ConfigError, PgmtaError
from pgmta.mail.text import UNSTORABLE
from pgmta_features.campaigns.lists.csv_rows import CsvRow, read_rows
from pgmta_features.campaigns.lists.query import QueryError, QueryRows, open_query


@dataclass(frozen=True, slots=True)
class RecipientList:
    """A list of recipients that is read once: its name, its columns, its rows.

    `length` is in octets of the file, or in rows of the query, as it guesses them; None for an
    unknown one.
    """

    name: str
    columns: Sequence[str]
    rows: Iterator[CsvRow]
    length: int | None = None
    file: BinaryIO | None = None

    def position(self, rows: int) -> int:
        """Return how much of the length was read with this number of rows."""
        return self.file.tell() if self.file and self.length else rows


@contextmanager
def csv_list(path: Path | None, separator: str) -> Iterator[RecipientList]:
    """Open a CSV file in UTF-8, or standard input. Raises ConfigError if it has no header."""
    with ExitStack() as stack:
        length = None
        if path is None:
            name, file = "-", sys.stdin.buffer
        else:
            try:
                name, file = path.name, stack.enter_context(path.open("rb"))
            except OSError as error:
                raise ConfigError([f"{path}: {error.strerror}"]) from None
            length = path.stat().st_size if path.is_file() else None
        # octets that are no UTF-8 become lone surrogates, which the check of a row reports
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        stack.callback(text.detach)
        columns, rows = _of_stream(name, text, separator)
        yield RecipientList(name, columns, rows, length, file)


def _of_stream(name: str, text: TextIO, separator: str) -> tuple[list[str], Iterator[CsvRow]]:
    """Return the columns and the rows below them. Raises ConfigError."""
    rows = read_rows(text, separator)
    header = next(rows, None)
    if header is None:
        raise ConfigError([f"{name}: it is empty; the first line names the columns"])
    if any(UNSTORABLE.search(column) for column in header.cells):
        raise ConfigError([f"{name}:{header.line}: it is no UTF-8; save the list as CSV in UTF-8"])
    if header.problem:
        raise ConfigError([f"{name}:{header.line}: {header.problem}"])
    if len(header.cells) == 1 and (other := _other_separator(header.cells[0], separator)):
        raise ConfigError([f"{name}:{header.line}: it has one column; try --separator {other}"])
    return header.cells, rows


def _other_separator(cell: str, separator: str) -> str:
    """Return the separator that a header seems to have, as the option takes it; '' for none."""
    names = {",": "comma", ";": "semicolon", "\t": "tab"}
    return next((name for each, name in names.items() if each in cell and each != separator), "")


@contextmanager
def query_list(uri: str, query: str) -> Iterator[RecipientList]:
    """Run a query, and read its rows as they come; a null is an empty text.

    Raises ConfigError for what the server refuses, PgmtaError if it fails at a later row.
    """
    with ExitStack() as stack:
        try:
            found = stack.enter_context(open_query(uri, query))
        except QueryError as error:
            raise ConfigError([f"--sql: {error}"]) from None
        yield RecipientList("row", found.columns, _rows_of(found), found.estimate)


def _rows_of(found: QueryRows) -> Iterator[CsvRow]:
    try:
        for number, cells in enumerate(found.rows, 1):
            yield CsvRow(number, cells, last=number)
    except QueryError as error:
        raise PgmtaError(f"--sql: {error}") from None
