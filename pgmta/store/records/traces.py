"""Traces: orders of operators to keep the transcripts of all attempts that match."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pgmta.logs import get
from pgmta.mail.metadata import values_of
from pgmta.model import Item
from pgmta.postgres.link import Link
from pgmta.store.queries import queries

FIELDS = ("domain", "recipient", "sender", "metadata")
"""The lists of patterns that a trace may have."""

_SQL = queries("traces")

log = get("traces")


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace with its patterns by field, each split at the `*` that stand for any text.

    Patterns of one field are alternatives, and different fields must all match. Case is ignored.
    """

    id: int
    patterns: dict[str, list[list[str]]]
    metadata: dict[str, list[list[str]]]

    @classmethod
    def of(cls, number: int, wanted: Any) -> Trace:
        """Return the trace of a row of the table. Raises ValueError if it is malformed."""
        if not isinstance(wanted, dict) or not set(wanted) <= set(FIELDS):
            raise ValueError(f"expected lists by {', '.join(FIELDS)}")
        for texts in wanted.values():
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("expected lists of texts")
        patterns = {
            name: [text.lower().split("*") for text in texts]
            for name, texts in wanted.items()
            if texts and name != "metadata"
        }
        metadata: dict[str, list[list[str]]] = {}
        for text in wanted.get("metadata", ()):
            key, sign, value = text.partition("=")
            if not (key and sign):
                raise ValueError(f"metadata {text!r}: expected key=value")
            metadata.setdefault(key, []).append(value.lower().split("*"))
        return cls(number, patterns, metadata)

    def matches(self, item: Item) -> bool:
        """Return whether attempts for the row are to be kept."""
        for name, patterns in self.patterns.items():
            text = getattr(item, name).lower()
            if not any(_like(parts, text) for parts in patterns):
                return False
        if not self.metadata:
            return True
        try:
            values = values_of(item.metadata or "{}")
        except (ValueError, RecursionError):
            return False
        for key, patterns in self.metadata.items():
            value = values.get(key, "")
            text = (value if isinstance(value, str) else json.dumps(value)).lower()
            if any(_like(parts, text) for parts in patterns):
                return True
        return False


def _like(parts: list[str], text: str) -> bool:
    """Return whether the text has the parts in their order, with any text between them."""
    first, *between = parts
    if not between:
        return text == first
    *between, last = between
    if not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in between:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return place <= end


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
