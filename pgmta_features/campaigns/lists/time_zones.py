"""The time zones of recipients, in a column of their list (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

from pgmta_features.campaigns.lists.problem_list import MAX_SHOWN_LINES

_MAX_SHOWN_CHARACTERS = 64


class TimeZones:
    """The zones that the server knows; a blank cell has that of the campaign, `default`."""

    def __init__(self, column: str, names: Iterable[str], default: str) -> None:
        self.column = column
        self._known = {name.lower(): name for name in names}
        self._default = default
        self._hints: dict[str, str] = {}  # of the first names that are unknown
        self.find = cache(self._find)  # a list has few, and a million rows

    def _find(self, cell: str) -> str:
        """Return the zone of a cell as the server spells it. Raises ValueError."""
        name = cell.strip()
        if not name:
            return self._default
        if found := self._known.get(name.lower()):
            return found
        shown = name[:_MAX_SHOWN_CHARACTERS]
        # a hint takes milliseconds, and a list may have another column there
        if shown not in self._hints and len(self._hints) < MAX_SHOWN_LINES:
            near = get_close_matches(shown.lower(), self._known, 1)
            self._hints[shown] = f"; did you mean {self._known[near[0]]}?" if near else ""
        hint = self._hints.get(shown, "")
        raise ValueError(f"{self.column}: there is no time zone {shown!r}{hint}")
