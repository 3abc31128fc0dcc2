"""The widths with which a table fits a terminal (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from pgmta.command import columns

_GAP_CHARACTERS = 2  # between two columns
_MIN_TEXT_CHARACTERS = 10  # that a text keeps
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*")


def fitted_widths(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    room: int,
    whole: Collection[int] = (),
    least: Collection[int] = (),
) -> dict[int, int]:
    """Return the width of each column of a table whose lines have `room` characters.

    The first column, times and those of `whole` keep their width, but a first column in `least`
    does not. The widest of the others are narrowed first, to ten characters or their header at
    least. If that is not enough, columns of `least` but the first one are left out, the last first.
    """
    texts = {n: (name, *(row[n] for row in rows)) for n, name in enumerate(header)}
    widths = {n: max(map(columns, each)) for n, each in texts.items()}
    floor = {
        n: min(widths[n], max(_MIN_TEXT_CHARACTERS, len(name))) for n, name in enumerate(header)
    }
    for n in widths:
        if (
            (n == 0 and n not in least)
            or n in whole
            or any(_TIME.fullmatch(row[n]) for row in rows)
        ):
            floor[n] = widths[n]
    for n in sorted((each for each in least if each), reverse=True):
        if _line(floor.values()) > room:
            del floor[n], widths[n]
    while _line(widths.values()) > room:
        wide = [n for n in widths if widths[n] > floor[n]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _line(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + _GAP_CHARACTERS * (len(each) - 1)
