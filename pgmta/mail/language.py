"""Languages that a reader wants, and the one of ours that serves (RFC 4647, RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

TAG = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*")
"""A language tag."""

_QUALITY = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
_MAX_LANGUAGES = 20  # of a field, so that no client makes us sort a long one


def look_up(tags: Iterable[str], known: Container[str]) -> str | None:
    """Return the first tag that is known, in lower case; None if none is.

    A tag that is not known stands for its shorter forms: pt-br for pt (RFC 4647, section 3.4).
    """
    for wanted in tags:
        tag = wanted.lower()
        while tag:
            if tag in known:
                return tag
            tag = tag.rpartition("-")[0]
    return None


def accepted(field: str) -> list[str]:
    """Return the tags of a field Accept-Language, the most wanted first (RFC 9110, 12.5.4)."""
    tags: list[tuple[float, str]] = []
    for part in field.split(",", _MAX_LANGUAGES)[:_MAX_LANGUAGES]:
        tag, _, rest = part.partition(";")
        match = _QUALITY.fullmatch(rest.strip())
        quality = float(match[1]) if match else 0.0 if rest.strip() else 1.0
        if quality and TAG.fullmatch(tag.strip()):
            tags.append((quality, tag.strip()))
    return [tag for _, tag in sorted(tags, key=lambda each: -each[0])]
