"""A template: texts with words, compiled once and filled with the values of each mail (pure)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from pgmta.compose.html_places import HtmlPlaces
from pgmta.compose.own_fields import is_structured, name_problem, text_problem, value_problem
from pgmta.compose.parts import NamedMailbox, Parts
from pgmta.compose.words import (
    MAX_ATOM_CHARACTERS,
    MAX_FIELD_CHARACTERS,
    Filling,
    Split,
    WordPlace,
    fault,
    places_of,
    split,
    value_text,
)
from pgmta.errors import AddressError, TemplateError
from pgmta.mail.address import parse_mailbox
from pgmta.mail.text import UNSTORABLE

MAX_TEXT_CHARACTERS = 1 << 20
"""Characters of the text and of the html of a template."""

MAX_PLACES = 1000
"""Places of words in all texts of a template: each has its value."""

MAX_WORDS_OCTETS = 4 << 20
"""For the encoded words of text and html, each as often as it is there; submit_template() too."""

_SPECIAL_IN_NAME = re.compile(r'[<>@,;:"]')
_QUOTED_PAIR = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """A template as it is written. `{{name}}` is a word, `{{{{` is `{{`.

    `sender` is the reverse-path, '' for none, and has no words. `from_` and `reply_to` are
    `NAME <ADDRESS>` or `ADDRESS`. `headers` are further fields by name. `unsubscribe` is the scope
    from which recipients of its mail unsubscribe.
    """

    sender: str
    from_: str
    reply_to: str | None = None
    subject: str
    body: str | None = None
    html: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    unsubscribe: str | None = None


@dataclass(frozen=True, slots=True)
class _Text:
    """The strings of a text, and the holes for values: index of the string and of the filling."""

    strings: tuple[str, ...]
    holes: tuple[tuple[int, int], ...]

    def fill(self, values: Sequence[str]) -> str:
        if not self.holes:
            return self.strings[0]
        strings = list(self.strings)
        for string, filling in self.holes:
            strings[string] = values[filling]
        return "".join(strings)


type _Mailbox = tuple[_Text, _Text]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A compiled template. `compile_template` makes it."""

    words: Mapping[str, frozenset[WordPlace]]
    """The places of each word, by its name."""
    _fillings: tuple[Filling, ...] = field(repr=False)
    _from: _Mailbox = field(repr=False)
    _reply_to: _Mailbox | None = field(repr=False)
    _subject: _Text = field(repr=False)
    _body: _Text | None = field(repr=False)
    _html: _Text | None = field(repr=False)
    _headers: tuple[tuple[str, _Text], ...] = field(repr=False)

    def fill(
        self, words: Mapping[str, object], to: Sequence[NamedMailbox], tail: str = ""
    ) -> Parts:
        """Return the parts with these values. Values are texts, numbers, true and false.

        Raises ValueError for a word that is missing, unknown or has a value that its place refuses.
        The error has no value in it.
        """
        texts = self.check_words(words)
        values = [
            texts[word] if encode is None else encode(texts[word])
            for word, encode in self._fillings
        ]
        self._check_size(values)
        return self._parts(values, to, tail)

    @property
    def counts(self) -> dict[str, int]:
        """How often text and html have each of their words."""
        holes = [hole for text in (self._body, self._html) if text for hole in text.holes]
        return dict(Counter(self._fillings[filling].word for _, filling in holes))

    @property
    def text_words(self) -> tuple[str, ...]:
        """The words of the plain text, in the order in which each first comes there."""
        holes = self._body.holes if self._body else ()
        return tuple(dict.fromkeys(self._fillings[filling].word for _, filling in holes))

    @property
    def has_text(self) -> bool:
        """Whether there is a plain text."""
        return self._body is not None

    def masked(self, to: Sequence[NamedMailbox], tail: str = "") -> Parts:
        """Return the parts with `{{word}}` for each word."""
        return self._parts([f"{{{{{word}}}}}" for word, _ in self._fillings], to, tail)

    def check_words(self, words: Mapping[str, object]) -> dict[str, str]:
        """Return the values as texts. Raises ValueError as `fill` does."""
        if words.keys() != self.words.keys():
            raise ValueError(self._misfit(words))
        texts = {}
        for word, value in words.items():
            try:
                texts[word] = text = value_text(value)
            except ValueError as error:
                raise ValueError(f"the word {word} {error}") from None
            for place in self.words[word]:
                if reason := fault(place, text):
                    raise ValueError(f"the word {word} {reason}")
        return texts

    def _check_size(self, values: Sequence[str]) -> None:
        """Raise ValueError if the values would make a text that takes the memory of a worker."""
        if max(map(len, values), default=0) * 4 * MAX_PLACES <= MAX_WORDS_OCTETS:
            return
        sizes = [len(value.encode()) for value in values]
        total = 0
        for part, text in (("body", self._body), ("html", self._html)):
            total += sum(sizes[filling] for _, filling in text.holes) if text else 0
            if total > MAX_WORDS_OCTETS:
                raise ValueError(
                    f"the words of {part} are over {MAX_WORDS_OCTETS >> 20} MB, each as often as "
                    "the template has it"
                )

    def _misfit(self, words: Mapping[str, object]) -> str:
        missing = sorted(self.words.keys() - words.keys())
        if missing:
            return f"{_named(missing)} missing"
        unknown = sorted(map(str, words.keys() - self.words.keys()))
        near = get_close_matches(unknown[0][:64], self.words, 1)
        known = f"did you mean {near[0]}?" if near else (
            f"it has {', '.join(sorted(self.words))}" if self.words else "it has no words"
        )  # fmt: skip
        return f"{_named(unknown)} not in the template; {known}"

    def _parts(self, values: Sequence[str], to: Sequence[NamedMailbox], tail: str) -> Parts:
        def filled(mailbox: _Mailbox) -> NamedMailbox:
            name, address = mailbox
            return name.fill(values).strip(), address.fill(values)

        return Parts(
            from_=filled(self._from),
            to=tuple(to),
            reply_to=(filled(self._reply_to),) if self._reply_to else (),
            subject=self._subject.fill(values),
            body=self._body.fill(values) if self._body else None,
            html=self._html.fill(values) if self._html else None,
            headers=tuple([(name, text.fill(values)) for name, text in self._headers]),
            tail=tail,
        )


def _named(words: list[str]) -> str:
    shown = ", ".join(word[:64] for word in words[:10])
    return f"the word {shown} is" if len(words) == 1 else f"the words {shown} are"


def compile_template(source: TemplateSource) -> Template:
    """Return the template that a source is. Raises TemplateError for its first mistake."""
    return _Compiler().compile(source)


class _Compiler:
    """Compiles one template. It collects the words and their fillings."""

    def __init__(self) -> None:
        self._fillings: dict[Filling, int] = {}
        self._words: defaultdict[str, set[WordPlace]] = defaultdict(set)
        self._places = 0

    def compile(self, source: TemplateSource) -> Template:
        self._check_sender(source.sender)
        mailbox = self._mailbox("from", source.from_)
        reply_to = self._mailbox("reply_to", source.reply_to) if source.reply_to else None
        subject = self._field("subject", source.subject)
        headers = self._headers(source.headers)
        if source.body is None and source.html is None:
            raise TemplateError("", 1, "it has neither text nor html")
        body = self._body(source.body) if source.body is not None else None
        html = self._html(source.html) if source.html is not None else None
        words = {word: frozenset(places) for word, places in sorted(self._words.items())}
        return Template(
            words, tuple(self._fillings), mailbox, reply_to, subject, body, html, headers
        )

    def _check_sender(self, sender: str) -> None:
        if "{{" in sender:
            raise TemplateError(
                "sender", 1, "it has a word",
                "all mail of a template has one reverse-path: write sender: ADDRESS",
            )  # fmt: skip
        if sender:
            self._check_mailbox("sender", sender)

    def _check_mailbox(self, part: str, address: str) -> None:
        if not address:
            raise TemplateError(part, 1, "it has no address", "write ADDRESS or NAME <ADDRESS>")
        try:
            parse_mailbox(address)
        except AddressError as error:
            raise TemplateError(
                part, 1, str(error), "write ADDRESS or NAME <ADDRESS>" if part != "sender" else ""
            ) from None

    def _mailbox(self, part: str, text: str) -> _Mailbox:
        """Return name and address of `NAME <ADDRESS>` or `ADDRESS`."""
        self._check_field(part, text)
        name, bracket, address = text.strip().rpartition("<")
        if bracket and address.endswith(">"):
            address = address[:-1]
        elif bracket:
            raise TemplateError(part, 1, "it does not end with >", "write NAME <ADDRESS>")
        name = name.strip()
        if len(name) > 1 and name[0] == name[-1] == '"':
            name = _QUOTED_PAIR.sub(r"\1", name[1:-1])
        elif odd := _SPECIAL_IN_NAME.search(name):
            raise TemplateError(
                part, 1, f"the name has {odd[0]}",
                'there is one mailbox; a name with such a character is in quotes: "A, B" <ADDRESS>',
            )  # fmt: skip
        return self._field(part, name, WordPlace.NAME), self._address(part, address.strip())

    def _address(self, part: str, address: str) -> _Text:
        parts = self._split(part, address)
        if not parts.words:
            self._check_mailbox(part, address)
        elif parts.literals != ("", ""):
            raise TemplateError(
                part, 1, "a word is only a part of the address",
                "the program gives the whole address as a word: <{{address}}>",
            )  # fmt: skip
        return self._text(
            parts, [(WordPlace.ADDRESS, Filling(word.name, None)) for word in parts.words]
        )

    def _check_field(self, part: str, text: str) -> None:
        if problem := text_problem(text):
            raise TemplateError(part, 1, f"it {problem}")
        if len(text) > MAX_FIELD_CHARACTERS:
            raise TemplateError(part, 1, f"it is over {MAX_FIELD_CHARACTERS} characters")

    def _field(self, part: str, text: str, place: WordPlace = WordPlace.FIELD) -> _Text:
        self._check_field(part, text)
        parts = self._split(part, text)
        return self._text(parts, [(place, Filling(word.name, None)) for word in parts.words])

    def _headers(self, headers: Mapping[str, str]) -> tuple[tuple[str, _Text], ...]:
        """Return the fields by name, because the database keeps no order."""
        compiled = {}
        for name, text in sorted(headers.items()):
            part = f"headers.{name}"
            if not isinstance(text, str):  # a row that was made by hand
                raise TemplateError(part, 1, "it is no text")
            if problem := name_problem(name):
                raise TemplateError(part, 1, problem)
            if name.lower() in compiled:
                raise TemplateError(part, 1, "there is such a field already; case is ignored")
            place = WordPlace.ATOM if is_structured(name) else WordPlace.FIELD
            field_text = self._field(part, text, place)
            longest = field_text.fill(["x" * MAX_ATOM_CHARACTERS] * len(self._fillings))
            if problem := value_problem(name, longest):
                raise TemplateError(part, 1, problem)
            compiled[name.lower()] = (name, field_text)
        return tuple(compiled.values())

    def _body(self, text: str) -> _Text:
        self._check_text("body", text)
        parts = self._split("body", text)
        return self._text(parts, places_of("body", parts))

    def _html(self, text: str) -> _Text:
        self._check_text("html", text)
        parts = self._split("html", text)
        return self._text(parts, [each[1:] for each in HtmlPlaces("html", parts).find()])

    def _check_text(self, part: str, text: str) -> None:
        if match := UNSTORABLE.search(text):
            line = text.count("\n", 0, match.start()) + 1
            raise TemplateError(part, line, f"it has the character U+{ord(match[0]):04X}")
        if len(text) > MAX_TEXT_CHARACTERS:
            raise TemplateError(part, 1, f"it is over {MAX_TEXT_CHARACTERS} characters")

    def _split(self, part: str, text: str) -> Split:
        parts = split(part, text)
        self._places += len(parts.words)
        if self._places > MAX_PLACES:
            raise TemplateError(
                part, 1, f"the template has over {MAX_PLACES} words, each as often as it is there",
                "the program gives a longer text as one word",
            )  # fmt: skip
        return parts

    def _text(self, parts: Split, places: Iterable[tuple[WordPlace, Filling]]) -> _Text:
        """Return the compiled text, whose words have these places in order."""
        strings, holes = [parts.literals[0]], []
        for (place, filling), literal in zip(places, parts.literals[1:], strict=True):
            self._words[filling.word].add(place)
            holes.append((len(strings), self._fillings.setdefault(filling, len(self._fillings))))
            strings += ["", literal]
        return _Text(tuple(strings), tuple(holes))
