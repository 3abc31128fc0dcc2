"""Where a list comes from: a file with CSV, or a query on the caller's own connection."""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from pgmta.errors import ConfigError, PgmtaError
from pgmta_features.campaigns.lists.csv_rows import MAX_ROW_CHARACTERS, CsvRow, read_rows
from pgmta_features.campaigns.lists.query import QueryError, QueryRows, open_query
from pgmta_features.campaigns.lists.text_encoding import (
    UTF_8,
    Encoding,
    named,
    order_without_bom,
    recognise,
    utf_16_fault,
)

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
"""What may separate the cells of a line, by its name."""

_EXCEL_LINE = re.compile(r'\ufeff?"?sep=(.)"?\r?\n?', re.IGNORECASE)
_MAX_EXCEL_LINE_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How a file with CSV is written; `separator` is a name in SEPARATORS."""

    encoding: Encoding
    separator: str


@dataclass(frozen=True, slots=True)
class RecipientList:
    """A list of recipients that is read once: its name, its columns, its rows.

    `length` is in octets of the file, or in rows of the query, as it guesses them. A query has no
    `file` and no `form`.
    """

    name: str
    columns: Sequence[str]
    rows: Iterator[CsvRow]
    length: int
    file: BinaryIO | None = None
    form: CsvForm | None = None

    @property
    def encoding(self) -> Encoding:
        """The encoding of its texts."""
        return self.form.encoding if self.form else UTF_8

    def position(self, rows: int) -> int:
        """Return how much of the length was read with this number of rows."""
        return self.file.tell() if self.file else rows


@contextmanager
def csv_list(
    path: Path | None, separator: str | None = None, encoding: str | None = None
) -> Iterator[RecipientList]:
    """Open a CSV file, or standard input. Its form is recognised unless it is given.

    Raises ConfigError for a form that is unknown, and for a file without a header.
    """
    with ExitStack() as stack:
        try:
            name, file = ("-", sys.stdin.buffer) if path is None else (
                path.name, stack.enter_context(path.open("rb"))
            )  # fmt: skip
        except OSError as error:
            raise ConfigError([f"{path}: {error.strerror}"]) from None
        if path is None or not path.is_file():  # a pipe is read once, and a list several times
            pipe, file = file, stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(pipe, file)
        yield stack.enter_context(csv_in(file, name, separator, encoding))


@contextmanager
def csv_in(
    file: BinaryIO, name: str, separator: str | None = None, encoding: str | None = None
) -> Iterator[RecipientList]:
    """Read the CSV in a file that is open and may be read several times, as `csv_list` does."""
    found = named(encoding) if encoding else recognise(file)
    if problem := utf_16_fault(file, found):
        raise ConfigError([f"{name}:{problem}"])
    length = file.seek(0, io.SEEK_END)
    first, form = _form(name, file, found, separator)
    with _text(file, found) as text:
        for _ in range(1, first):
            text.readline()
        rows = read_rows(text, SEPARATORS[form.separator], first)
        header = next(rows, None)
        columns = _columns(name, file, header, found)
        yield RecipientList(name, columns, rows, length, file, form)


@contextmanager
def _text(file: BinaryIO, encoding: Encoding) -> Iterator[TextIO]:
    """Decode a file from its beginning, and leave it open."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding.codec, encoding.errors, newline="")
    try:
        yield text
    finally:
        text.detach()


def _form(name: str, file: BinaryIO, encoding: Encoding, given: str | None) -> tuple[int, CsvForm]:
    """Return the line of the header and the form of a file. Raises ConfigError.

    Without a line of Excel's, the separator is the one that makes the most cells of the header.
    """
    with _text(file, encoding) as text:
        excel = _EXCEL_LINE.fullmatch(text.readline(_MAX_EXCEL_LINE_CHARACTERS))
    first = 2 if excel else 1
    if excel and not given:
        given = next((each for each, mark in SEPARATORS.items() if mark == excel[1]), None)
        if not given:
            reason = f"{excel[1]!r} separates no cells here; they are separated by {_listed()}"
            raise ConfigError([f"{name}:1: {reason}"])
    if given:
        return first, CsvForm(encoding, given)
    cells = dict.fromkeys(SEPARATORS, 0)
    for each, mark in SEPARATORS.items():
        with _text(file, encoding) as text:
            header = next(read_rows(text, mark), None)
        with _text(file, encoding) as text:
            line = text.readline(MAX_ROW_CHARACTERS)
            cells[each] = (header and len(header.cells)) or 1 + line.count(mark)
    most = max(cells.values())
    found = [each for each, number in cells.items() if number == most]
    if most > 1 and len(found) > 1:
        raise ConfigError([f"{name}:1: {' and '.join(found)} make {most} columns each; "
                           "--separator says which one it is"])  # fmt: skip
    return first, CsvForm(encoding, found[0])


def _listed() -> str:
    *names, last = SEPARATORS
    return f"{', '.join(names)} or {last}"


def _columns(name: str, file: BinaryIO, header: CsvRow | None, encoding: Encoding) -> list[str]:
    """Return the columns that a header names. Raises ConfigError."""
    if header is None:
        raise ConfigError([f"{name}: it is empty; the first line names the columns"])
    if fault := encoding.fault("".join(header.cells)):
        order = order_without_bom(file) if "\0" in "".join(header.cells) else ""
        advice = f"it seems to be UTF-16 without a BOM: --encoding {order}" if order else (
            "--encoding names another one"
        )  # fmt: skip
        raise ConfigError([f"{name}:{header.line}: it {fault}; {advice}"])
    if header.problem:
        raise ConfigError([f"{name}:{header.line}: {header.problem}"])
    first, *others = header.cells
    return [first.removeprefix("\ufeff"), *others]


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
