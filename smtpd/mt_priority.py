"""Priorities that clients ask for with MT-PRIORITY, and those of rows (RFC 6710; pure)."""

from __future__ import annotations

_USUAL = 5  # of a row
_MOST = 9  # that a client may ask for, and less this the least


def row_priority(wanted: int) -> int:
    """Return the priority of a row, 0 (first) to 9, for one from 9 (first) to -9."""
    levels = _USUAL if wanted > 0 else _MOST - _USUAL
    return _USUAL - round(wanted * levels / _MOST)


def mt_priority(row: int) -> int:
    """Return the priority in the terms of a client for that of a row."""
    levels = _USUAL if row < _USUAL else _MOST - _USUAL
    return round((_USUAL - row) * _MOST / levels)


def parse(value: str) -> int | None:
    """Return the value of the parameter, or None if it is no priority."""
    digits = value.removeprefix("-")
    if len(digits) == 1 and digits.isascii() and digits.isdigit() and value != "-0":
        return int(value)
    return None
