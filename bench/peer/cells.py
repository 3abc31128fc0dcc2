"""Loads to measure: a cell is one kind of load, and the sets are lists of cells."""

from dataclasses import dataclass, replace
from pathlib import Path

from bench.phases import Options


@dataclass(frozen=True)
class Cell:
    """One kind of load: intake only, or end to end, and how the mail comes."""

    scenario: str  # "intake" or "e2e"
    count: int
    sessions: int = 20
    reuse: bool = True
    recipients: int = 1
    size: int = 4096
    rate: float = 0.0

    @property
    def label(self) -> str:
        """Return a short name that distinguishes cells."""
        parts = [self.scenario, f"{self.sessions} {'kept' if self.reuse else 'one a mail'}"]
        if self.recipients > 1:
            parts.append(f"{self.recipients} recipients")
        if self.size != 4096:
            parts.append(f"{self.size / 1000:g} KB")
        if self.rate:
            parts.append(f"{self.rate:g}/s")
        return ", ".join(parts)

    @property
    def end_to_end(self) -> bool:
        """Whether the mail is delivered."""
        return self.scenario == "e2e"

    def options(self, stall: float, processes: int | None, commands: Path) -> Options:
        """Return the options of a phase of this cell."""
        return Options(
            messages=self.count,
            sessions=self.sessions,
            size=self.size,
            recipients=self.recipients,
            domains=1,
            reuse=self.reuse,
            processes=processes,
            workers=1,
            backlog=0,
            rate=self.rate,
            stall=stall,
            sample=0.0,
            keep=False,
            commands=commands,
        )


QUICK = (
    Cell("intake", 2000, sessions=50),
    Cell("e2e", 2500),
    Cell("e2e", 1500, reuse=False),
    Cell("e2e", 50, rate=10),
)
FULL = (
    Cell("intake", 8000, sessions=50),
    Cell("intake", 5000, reuse=False),
    Cell("e2e", 8000),
    Cell("e2e", 5000, reuse=False),
    Cell("e2e", 8000, sessions=100),
    Cell("e2e", 5000, sessions=100, reuse=False),
    Cell("e2e", 3000, recipients=5),
    Cell("e2e", 2000, size=100_000),
    Cell("e2e", 100, sessions=10, size=10_000_000),
    Cell("e2e", 300, rate=10),
    Cell("e2e", 5000, rate=500),
)


def scaled(cells: tuple[Cell, ...], factor: float) -> list[Cell]:
    """Return the cells with that many times the messages."""
    return [replace(cell, count=max(1, round(cell.count * factor))) for cell in cells]
