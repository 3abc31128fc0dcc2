"""Traces: orders of operators to keep the transcripts of all attempts that match."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pgmta.logs import get
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.selection import Selection, parse
from pgmta.store.queries import queries

FIELDS = ("domain", "recipient", "sender", "tenant", "priority", "metadata")
"""The lists of texts that a trace may have."""

_SQL = queries("traces")

log = get("traces")


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace, and the mail that it is for."""

    id: int
    selection: Selection

    @classmethod
    def of(cls, number: int, wanted: Any) -> Trace:
        """Return the trace of a row of the table. Raises ValueError if it is malformed."""
        if not isinstance(wanted, dict) or not set(wanted) <= set(FIELDS):
            raise ValueError(f"expected lists by {', '.join(FIELDS)}")
        for texts in wanted.values():
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("expected lists of texts")
        return cls(number, parse(**wanted))

    def matches(self, item: Item) -> bool:
        """Return whether attempts for the row are to be kept."""
        try:
            return self.selection.takes(item)
        except (ValueError, RecursionError):  # metadata that can't be read
            return False


class Traces:
    """The traces as queued sees them. Each method raises StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._malformed: set[int] = set()

    async def active(self) -> list[Trace]:
        """Return the traces that last. One that is malformed is left out, and logged once."""
        found = []
        for number, wanted in await self._link.run(_SQL["active"]):
            try:
                found.append(Trace.of(number, json.loads(wanted)))
            except (ValueError, RecursionError) as error:
                if number not in self._malformed:
                    log.warning("a trace is malformed", trace=number, reason=str(error))
                self._malformed.add(number)
        return found

    async def remove(self) -> None:
        """Remove traces that ended over a day ago."""
        await self._link.run(_SQL["remove"])
