"""The editor that puts the words of a row into a text: `{name}` becomes `words.name`."""

from __future__ import annotations

import re
from typing import Any

_WORD = re.compile(rb"\{([a-z]+)\}")


def fill(content: bytes, metadata: dict[str, Any]) -> bytes:
    """Return the text with its words. Raises ValueError if one is missing."""
    words = metadata.get("words")
    if not isinstance(words, dict):
        return content

    def word(match: re.Match[bytes]) -> bytes:
        name = match[1].decode()
        if name not in words:
            raise ValueError(f"there is no word {name}")
        return str(words[name]).encode()

    return _WORD.sub(word, content)
