"""Values in the JSON answer of a provider, by a path such as `messages[0].status` (pure)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_STEP = re.compile(r"\.?([A-Za-z_@$][\w@$-]*)|\[(\d{1,4})\]")


@lru_cache(maxsize=1024)
def parse_path(text: str) -> tuple[str | int, ...]:
    """Return the steps of a path. Raises ValueError."""
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if not found:
            raise ValueError(f"{text!r} is no path; write for example messages[0].status")
        steps.append(found[1] if found[2] is None else int(found[2]))
        at = found.end()
    if not steps:
        raise ValueError("a path is empty")
    return tuple(steps)


@lru_cache(maxsize=1024)
def parse_list_path(text: str) -> tuple[tuple[str | int, ...], ...]:
    """Return the paths between the `[]` of a path to lists in lists. Raises ValueError.

    Of `entry[].events` they are those of `entry`, and of `events` in each of its elements.
    """
    return tuple(parse_path(part) for part in text.removesuffix("[]").split("[]"))


def find_elements(document: Any, paths: tuple[tuple[str | int, ...], ...]) -> list[Any] | None:
    """Return the elements of all lists at such a path; None if the first list is not there.

    A mapping is taken for a list of itself. Where an inner list is missing, nothing is found.
    """
    first, *inner = paths
    elements = _elements(find(document, first))
    for path in inner:
        elements = elements and [
            each for outer in elements for each in _elements(find(outer, path)) or ()
        ]
    return elements


def _elements(value: Any) -> list[Any] | None:
    return [value] if isinstance(value, dict) else value if isinstance(value, list) else None


def find(document: Any, path: tuple[str | int, ...]) -> Any:
    """Return the value at a path; None if there is none."""
    for step in path:
        if isinstance(step, int):
            if not (isinstance(document, list) and step < len(document)):
                return None
            document = document[step]
        else:
            if not isinstance(document, dict):
                return None
            document = document.get(step)
    return document


def shown(value: Any) -> str:
    """Return a value as a text: that of a mapping or list is ''."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""
