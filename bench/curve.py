"""Summarise the cells of a scale run: by value, and against the first value."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.cells import Cell
from bench.columns import Spread, aligned, cell, cells, spread

CPU = tuple(f"CPU ms/message {name}" for name in ("smtpd", "queued", "postgres"))
LARGEST = "largest process MB "
CLAIM = ("front ms", "front buffers", "walk ms", "walk buffers", "fill seconds")


@dataclass(frozen=True)
class Curve:
    """All cells of one run, finished or not."""

    vary: str
    cells: Sequence[Cell]

    @property
    def rate(self) -> str:
        """The figure that the ratios are of."""
        return "recipients/s" if self.vary == "recipients" else "messages/s"

    def values(self) -> list[int]:
        """Return the values in the order of the first round."""
        return list(dict.fromkeys(c.value for c in self.cells))

    def _figure(self, one: Cell, name: str) -> float | None:
        if name == "recipients/s" and name not in one.figures:
            name = "messages/s"  # with one recipient they are the same
        if name == "CPU ms/message":
            parts = [one.figures.get(part) for part in CPU]
            return None if None in parts else sum(part for part in parts if part is not None)
        if name == "MB/s":
            rate = one.figures.get("messages/s")
            return None if rate is None else rate * one.value / 1e6
        return one.figures.get(name)

    def of(self, value: int, name: str) -> Spread | None:
        """Return minimum, median and maximum of a figure at a value."""
        found = [self._figure(one, name) for one in self.cells if one.value == value]
        return spread([figure for figure in found if figure is not None])

    def _middle(self, value: int, name: str) -> float | None:
        figures = self.of(value, name)
        return figures[1] if figures else None

    def ratio(self, value: int) -> Spread | None:
        """Compare the rate with that at the first value, round by round."""
        rates = {(c.value, c.turn): self._figure(c, self.rate) for c in self.cells}
        first = self.values()[0]
        ratios = []
        for (at, turn), rate in rates.items():
            base = rates.get((first, turn))
            if at == value and rate is not None and base:
                ratios.append(rate / base)
        return spread(ratios)

    def largest(self, value: int) -> tuple[float, str] | None:
        """Return the largest single process at a value, in any round, and whose it is."""
        found = [
            (size, name.removeprefix(LARGEST))
            for one in self.cells
            for name, size in one.figures.items()
            if one.value == value and name.startswith(LARGEST)
        ]
        return max(found, default=None)

    def problems(self) -> list[str]:
        """Return what went wrong, with where."""
        return [
            f"{self.vary} {c.value}, round {c.turn + 1}: {p}"
            for c in self.cells
            for p in c.problems
        ]

    def notes(self) -> list[str]:
        """Return the remarks, with where."""
        return [
            f"{self.vary} {c.value}, round {c.turn + 1}: {n}" for c in self.cells for n in c.notes
        ]

    def table(self) -> str:
        """Return the aligned table, a row for each value."""
        several = len({c.turn for c in self.cells}) > 1
        three = ["min", "median", "max"]
        head = [self.vary, "messages", self.rate, "", "", "ratio", "", ""]
        second = ["", "", *three, *three]
        if not several:
            head, second = [self.vary, "messages", self.rate, "ratio"], [""] * 4
        if self.vary == "size":
            head, second = [*head, "MB/s"], [*second, ""]
        head += ["CPU ms", "delivery ms", "", "peak MB", "largest", "process"]
        second += ["a mail", "p50", "p99", "all", "MB", "of"]
        if self.vary == "backlog":
            head += ["front", "", "walk", "", "fill"]
            second += ["ms", "buffers", "ms", "buffers", "s"]
        return aligned([head, second, *(self._row(value, several) for value in self.values())])

    def _row(self, value: int, several: bool) -> list[str]:
        messages = next(c.messages for c in self.cells if c.value == value)
        row = [str(value), str(messages)]
        for figures in (self.of(value, self.rate), self.ratio(value)):
            row += cells(figures) if several else [cell(figures[1] if figures else None)]
        names = ["CPU ms/message", "delivery ms p50", "delivery ms p99", "peak MB product"]
        if self.vary == "size":
            names.insert(0, "MB/s")
        row += [cell(self._middle(value, name)) for name in names]
        largest = self.largest(value)
        row += [cell(largest[0]), largest[1]] if largest else ["-", "-"]
        if self.vary == "backlog":
            row += [cell(self._middle(value, name)) for name in CLAIM]
        return row
