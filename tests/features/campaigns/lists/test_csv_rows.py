"""The reader of CSV against Python's csv, and files that are no CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmta_features.campaigns.lists import csv_rows
from pgmta_features.campaigns.lists.csv_rows import (
    MAX_CELL_CHARACTERS,
    MAX_ROW_CHARACTERS,
    CsvRow,
    read_rows,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\r\n",;\0 a'))
ENDS = ("\n", "\r\n", "\r")


def rows_of(text: str) -> list[CsvRow]:
    return list(read_rows(io.StringIO(text, newline="")))


def physical_lines(text: str) -> int:
    """How many lines of a file this text is."""
    return len(list(io.StringIO(text, newline="")))


@given(st.lists(st.lists(TEXT, min_size=1)), st.sampled_from(ENDS))
def test_what_python_writes_is_read_with_its_lines(table: list[list[str]], end: str) -> None:
    text, expected = "", []
    for cells in table:
        line = io.StringIO(newline="")
        csv.writer(line, lineterminator=end, quoting=csv.QUOTE_ALL).writerow(cells)
        first = physical_lines(text) + 1
        text += line.getvalue()
        expected.append(CsvRow(first, cells, last=physical_lines(text)))
    assert rows_of(text) == expected


@given(TEXT)
@example('a"b,c\n')
@example('"a"b\nc')
@example('"a')
@example("a\rb\r\nc\n\rd")
def test_any_text_is_read_to_its_end(text: str) -> None:
    found = rows_of(text)
    numbers = [row.line for row in found]
    assert numbers == sorted(set(numbers))
    assert all(1 <= number <= physical_lines(text) for number in numbers)
    good = []
    try:  # up to its first error Python reads the same
        for cells in csv.reader(io.StringIO(text, newline=""), strict=True):
            good += [cells] if cells else []
    except csv.Error:
        problem = next(index for index, row in enumerate(found) if row.problem)
        assert [row.cells for row in found[:problem]] == good
    else:
        assert [row.cells for row in found] == good
        assert not any(row.problem for row in found)


@given(
    st.lists(st.sampled_from(['x@a.b,"Ann ""A"""', "y@a.b,Bob", '"z@a.b","a\nb"']), max_size=6),
    st.sampled_from(['"lone,1', 'q@a.b,"lone', 'q@a.b,"a"b', 'q@a.b,"a" ,']),
    st.data(),
)
def test_a_bad_line_costs_no_other(good: list[str], bad: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(good)))
    without = [row.cells for row in rows_of("".join(f"{each}\n" for each in good))]
    lines = [*good[:place], bad, *good[place:]]
    found = rows_of("".join(f"{each}\n" for each in lines))
    kept = [row.cells for row in found if not row.problem]
    number = physical_lines("".join(f"{each}\n" for each in good[:place])) + 1
    if any(row.line == number and not row.problem for row in found):
        # the next quote of the file ended its cell by chance
        assert '"' in "".join(good[place:])
    else:
        assert [row.line for row in found if row.problem] == [number]
        assert kept == without


def test_a_quote_without_an_end_swallows_nothing() -> None:
    """One far from the next quote, and one at the end."""
    text = 'a@x.y,"Ann\n' + "".join(f"r{n}@x.y,{n}\n" for n in range(50_000)) + 'b@x.y,"\n'
    found = rows_of(text)
    assert len(found) == 1 + 50_000 + 1
    assert [(row.line, row.problem) for row in found if row.problem] == [
        (1, "a cell is over 65536 characters, or a quote has no end"),
        (50_002, "a quote has no end"),
    ]


def test_rows_and_cells_that_are_too_long() -> None:
    long = "x" * (MAX_CELL_CHARACTERS + 1)
    endless = "y," * MAX_ROW_CHARACTERS
    many = '"' + "z\n" * 10 + '"'
    assert len(many) < MAX_CELL_CHARACTERS
    text = f"a,b\n{long},1\nc,d\n{endless}\ne,f\n{many},2\n"
    assert [(row.line, bool(row.problem)) for row in rows_of(text)] == [
        (1, False), (2, True), (3, False), (4, True), (5, False), (6, False),
    ]  # fmt: skip


def test_a_row_of_many_lines_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MAX_ROW_CHARACTERS", 100)
    found = rows_of('a,b\nc,"' + "line\n" * 50 + "e\nf,g\n")
    assert [row.cells for row in found if not row.problem] == [
        ["a", "b"], *[["line"]] * 49, ["e"], ["f", "g"],
    ]  # fmt: skip
    assert [row.line for row in found if row.problem] == [2]


def test_a_file_is_read_in_time_in_proportion_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line ends a cell in quotes and begins one, up to a bad line at the end."""
    read = 0

    def counted(self: Any) -> str:
        nonlocal read
        line = of(self)
        read += len(line)
        return line

    of = csv_rows._Lines.__next__
    monkeypatch.setattr(csv_rows._Lines, "__next__", counted)
    text = 'a@x.y,"b\n' + 'c","d\n' * 100_000 + 'e"f\n' + "g@x.y,h\n"
    found = rows_of(text)
    assert read < 12 * len(text)
    assert found[-1].cells == ["g@x.y", "h"]
    (whole,) = [row for row in found if row.last > row.line]
    assert (whole.problem, whole.last) == (
        "there is text behind the quote that ends a cell",
        100_002,
    )
