"""Finds the columns of a list by their names, as people write them (pure)."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches

_MAX_SHOWN_NAMES = 10  # of columns, in an error
_MAX_COMPARED_NAMES = 1000  # of columns, to find a hint
_MAX_SHOWN_CHARACTERS = 64  # of a column, in an error


class NoColumn(ValueError):
    """No column has the name, or several have it. `near` may be meant."""

    def __init__(self, reason: str, near: str = "") -> None:
        super().__init__(reason)
        self.near = near


class ColumnFinder:
    """The columns of a list. Blanks around a name and its case make no difference."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.names = [column.strip() for column in columns]
        self._exact = defaultdict[str, list[int]](list)
        self._folded = defaultdict[str, list[int]](list)
        for index, name in enumerate(self.names):
            self._exact[name].append(index)
            self._folded[_folded(name)].append(index)

    def find(self, name: str) -> int:
        """Return the index of a column; its exact name goes first. Raises NoColumn."""
        found = self._exact.get(name.strip()) or self._folded.get(_folded(name), [])
        if len(found) == 1:
            return found[0]
        if found:
            names = list(dict.fromkeys(repr(self.names[index]) for index in found))
            raise NoColumn(f"there are several columns {' and '.join(names)}")
        names = [each[:_MAX_SHOWN_CHARACTERS] for each in self.names[:_MAX_COMPARED_NAMES]]
        alike = {_as_word(each): each for each in names}
        for near in get_close_matches(_as_word(name), alike, 1, 0.5):
            raise NoColumn(f"there is no column {name}; did you mean {alike[near]!r}?", alike[near])
        raise NoColumn(f"there is no column {name}; it has {shown_names(self.names)}")


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of columns, and how many more there are."""
    shown = ", ".join(repr(name[:_MAX_SHOWN_CHARACTERS]) for name in names[:_MAX_SHOWN_NAMES])
    more = len(names) - _MAX_SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _folded(name: str) -> str:
    """Return a name without its case; an umlaut is one character, and blanks are one."""
    return unicodedata.normalize("NFC", " ".join(name.split())).casefold()


def _as_word(name: str) -> str:
    return re.sub(r"[ .-]", "_", _folded(name))
