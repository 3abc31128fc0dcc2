"""The metadata of a row: its values as conditions of configuration files name them (pure)."""

from __future__ import annotations

import json
from typing import Any


def values_of(metadata: str) -> dict[str, Any]:
    """Return the values of metadata in JSON; a number of any length is a text.

    Raises ValueError, RecursionError if they can't be read.
    """
    found = json.loads(metadata, parse_int=str, parse_float=str)
    return found if isinstance(found, dict) else {}


def text_of(value: object) -> str | None:
    """Return a value as PostgreSQL's `metadata ->> 'KEY'` has it; None for lists and objects."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else None
