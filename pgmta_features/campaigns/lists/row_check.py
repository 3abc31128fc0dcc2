"""Makes a row of a list a recipient with the words of a template, or refuses it (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from json import JSONEncoder

from pgmta.compose.composed_message import UNSUBSCRIBE
from pgmta.compose.template import Template
from pgmta.compose.words import NAME, fault
from pgmta.config.types import hint
from pgmta.errors import AddressError, ConfigError
from pgmta.mail.address import parse_recipient
from pgmta.mail.telephone import NUMBER_DOMAIN
from pgmta.mail.text import UNSTORABLE
from pgmta_features.campaigns.lists.column_finder import ColumnFinder, NoColumn
from pgmta_features.campaigns.lists.text_encoding import UTF_8, Encoding
from pgmta_features.campaigns.lists.time_zones import TimeZones

RECIPIENT = "recipient"
"""The column with the mailbox, and the word that has it."""

MAX_WORDS_OCTETS = 65_536
"""For the words of a recipient as JSON: a worker feeds a thousand recipients at once."""

_OWN_WORDS = frozenset((RECIPIENT, UNSUBSCRIBE))
_TO_JSON = JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_BLANKS = " \t"


def words_of(template: Template) -> list[str]:
    """Return the words of a template that a list has to give; pgmta gives the others."""
    return sorted(template.words.keys() - _OWN_WORDS)


def read_mapping(
    texts: Iterable[str], template: Template, zone_column: str | None = None
) -> dict[str, str]:
    """Return the columns that `WORD=COLUMN` name; a column alone has the mailbox.

    The campaign's column of time zones counts as a word. Raises ConfigError for a word that a list
    does not give.
    """
    words = [RECIPIENT, *words_of(template), *([zone_column] if zone_column else [])]
    mapping: dict[str, str] = {}
    problems = []
    for text in texts:
        word, sign, column = text.partition("=")
        if not sign or not (word in words or NAME.fullmatch(word)):
            word, column = RECIPIENT, text
        if word in mapping:
            problems.append(f"--column {text}: {word} has the column {mapping[word]!r} already")
        elif word not in words:
            problems.append(f"--column {text}: the list gives no word {word}; {hint(word, words)}")
        mapping[word] = column
    if problems:
        raise ConfigError(problems)
    return mapping


class RowCheck:
    """Checks the rows of a list whose columns are these.

    A word has the column of its name, or the one of `mapping`. Raises ConfigError if there is no
    such column, or several. Columns that the template has no word for are left out.
    """

    def __init__(
        self,
        template: Template,
        columns: Sequence[str],
        mapping: Mapping[str, str] | None = None,
        encoding: Encoding = UTF_8,
        zones: TimeZones | None = None,
    ) -> None:
        self._columns = ColumnFinder(columns)
        self._encoding = encoding
        self._width = len(columns)
        self._has_text = template.has_text
        mapping = mapping or {}
        places: dict[str, int] = {}
        problems = []
        for word in (RECIPIENT, *words_of(template), *([zones.column] if zones else [])):
            try:
                places[word] = self._columns.find(mapping.get(word, word))
            except NoColumn as error:
                problems.append(_no_column(word, mapping.get(word), error))
        if problems:
            raise ConfigError(problems)
        self._places = places
        self._recipient = places[RECIPIENT]
        self._zones = zones
        self._words = [
            (word, places[word], tuple(template.words[word])) for word in words_of(template)
        ]

    @property
    def columns(self) -> dict[str, str]:
        """The column of each word."""
        return {word: self._columns.names[place] for word, place in self._places.items()}

    @property
    def left_out(self) -> list[str]:
        """The columns that no word has."""
        used = set(self._places.values())
        return [name for place, name in enumerate(self._columns.names) if place not in used]

    def read(self, cells: Sequence[str]) -> tuple[str, str, str, str | None]:
        """Return recipient, its domain, the words as JSON, and its time zone if lists have one.

        Raises ValueError.
        """
        if len(cells) != self._width:
            raise ValueError(f"it has {len(cells)} cells, and there are {self._width} columns")
        try:
            recipient, domain = parse_recipient(cells[self._recipient].strip(_BLANKS))
        except AddressError as error:
            if reason := self._encoding.fault(cells[self._recipient]):
                raise ValueError(f"{RECIPIENT} {reason}") from None
            raise ValueError(str(error)) from None
        if domain == NUMBER_DOMAIN and not self._has_text:
            raise ValueError(f"{recipient}: the template has no plain text, which is the SMS")
        words = {}
        for word, index, places in self._words:
            words[word] = text = cells[index]
            if not text.isprintable() and UNSTORABLE.search(text):
                raise ValueError(f"{word} {self._encoding.fault(text)}")
            for place in places:
                if reason := fault(place, text):
                    raise ValueError(f"{word} {reason}")
        params = _TO_JSON(words)
        if len(params) > MAX_WORDS_OCTETS // 4 and len(params.encode()) > MAX_WORDS_OCTETS:
            raise ValueError(f"the words are over {MAX_WORDS_OCTETS} octets")
        if self._zones is None:
            return recipient, domain, params, None
        zone = self._zones.find(cells[self._places[self._zones.column]])
        return recipient, domain, params, zone


def _no_column(word: str, mapped: str | None, error: NoColumn) -> str:
    """Return the reason why a word has no column, and the option that gives it one."""
    if mapped is not None:
        return f"--column {word}={mapped}: {error}"
    column = shlex.quote(error.near) if error.near else "COLUMN"
    give = " Give" if str(error).endswith("?") else "; give"
    return f"{error}{give} --column {word}={column}"
