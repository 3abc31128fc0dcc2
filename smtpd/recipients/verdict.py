"""The answer to the question whether a recipient is known."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol


class Verdict(Enum):
    """Whether a recipient is known."""

    KNOWN = auto()
    UNKNOWN = auto()
    UNSURE = auto()  # it can't be found out now


class Source(Protocol):
    """Knows recipients. `addresses` are spellings of one, of which one has to be known."""

    def verdict(self, addresses: tuple[str, ...]) -> Verdict | None:
        """Return the verdict, None if it has to be looked up."""

    async def look_up(self, addresses: tuple[str, ...]) -> None:
        """Find the verdict out; afterwards `verdict` has it."""

    async def stop(self) -> None:
        """Close connections."""
