"""Makes a row of a list a recipient with the words of a template, or refuses it (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from json import JSONEncoder

from pgmta.compose.composed_message import UNSUBSCRIBE
from pgmta.compose.template import Template
from pgmta.compose.words import fault
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import parse_recipient
from pgmta.mail.telephone import NUMBER_DOMAIN
from pgmta.mail.text import UNSTORABLE

RECIPIENT = "recipient"
"""The column with the mailbox, and the word that has it."""

MAX_WORDS_OCTETS = 65_536
"""For the words of a recipient as JSON: a worker feeds a thousand recipients at once."""

_OWN_WORDS = frozenset((RECIPIENT, UNSUBSCRIBE))
_TO_JSON = JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_BLANKS = " \t"
_MAX_SHOWN_NAMES = 10  # of columns, in an error
_MAX_COMPARED_NAMES = 1000  # of columns, to find a hint


def words_of(template: Template) -> list[str]:
    """Return the words of a template that a list has to give; pgmta gives the others."""
    return sorted(template.words.keys() - _OWN_WORDS)


class RowCheck:
    """Checks the rows of a list whose columns are these.

    Raises ConfigError if the columns do not have the recipient and all words of the template.
    Columns that the template has no word for are left out.
    """

    def __init__(self, template: Template, columns: Sequence[str], column: str = RECIPIENT) -> None:
        names = [name.strip() for name in columns]
        problems = []
        if column not in names:
            hint = f"{_nearest(column, names)}; --column names another one"
            problems.append(f"there is no column {column}; {hint}")
        for word in words_of(template):
            if word not in names:
                hint = _nearest(word, names)
                problems.append(f"the template has the word {word}, and no column has it; {hint}")
        number = Counter(names)
        twice = [name for name in {column, *words_of(template)} if number[name] > 1]
        problems += [f"there are several columns {name}" for name in sorted(twice)]
        if problems:
            raise ConfigError(problems)
        self._width = len(names)
        self._has_text = template.has_text
        self._recipient = names.index(column)
        self._words = [
            (word, names.index(word), tuple(template.words[word])) for word in words_of(template)
        ]

    def read(self, cells: Sequence[str]) -> tuple[str, str, str]:
        """Return recipient, its domain, and the words as JSON. Raises ValueError."""
        if len(cells) != self._width:
            raise ValueError(f"it has {len(cells)} cells, and there are {self._width} columns")
        try:
            recipient, domain = parse_recipient(cells[self._recipient].strip(_BLANKS))
        except AddressError as error:
            raise ValueError(str(error)) from None
        if domain == NUMBER_DOMAIN and not self._has_text:
            raise ValueError(f"{recipient}: the template has no plain text, which is the SMS")
        words = {}
        for word, index, places in self._words:
            words[word] = text = cells[index]
            if not text.isprintable() and UNSTORABLE.search(text):
                raise ValueError(f"{word} has NUL, or is no UTF-8")
            for place in places:
                if reason := fault(place, text):
                    raise ValueError(f"{word} {reason}")
        params = _TO_JSON(words)
        if len(params) > MAX_WORDS_OCTETS // 4 and len(params.encode()) > MAX_WORDS_OCTETS:
            raise ValueError(f"the words are over {MAX_WORDS_OCTETS} octets")
        return recipient, domain, params


def _nearest(name: str, columns: Sequence[str]) -> str:
    """Return a hint: the column that may be meant, or which there are."""
    columns = [column[:64] for column in columns]
    folded = {
        re.sub(r"[ .-]", "_", column.lower()): column for column in columns[:_MAX_COMPARED_NAMES]
    }
    for near in get_close_matches(name, folded, 1, 0.5):
        return f"did you mean {folded[near]!r}?"
    named = ", ".join(map(repr, columns[:_MAX_SHOWN_NAMES]))
    more = f" and {len(columns) - _MAX_SHOWN_NAMES} more" if len(columns) > _MAX_SHOWN_NAMES else ""
    return f"it has {named}{more}"
