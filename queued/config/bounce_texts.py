"""The texts of DSNs by language: templates, and the files that have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pgmta.config.types import hint
from pgmta.errors import ConfigError
from pgmta.mail.answer_class import AnswerClass
from pgmta.mail.language import TAG, look_up
from pgmta.mail.text import printable, unsafe
from pgmta.shipped import shipped

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")


@dataclass(frozen=True, slots=True)
class BounceTemplate:
    """Literal texts, each followed by the placeholder of the same place; the last one by none."""

    literals: tuple[str, ...]
    names: tuple[str, ...]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with the values; no value is read as a template."""
        if not self.names:
            return self.literals[0]
        parts = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            parts += values[name], literal
        return "".join(parts)

    @classmethod
    def joined(cls, lines: Sequence[BounceTemplate]) -> BounceTemplate:
        """Return the template of these lines, with LF between them."""
        literals, names = list(lines[0].literals), list(lines[0].names)
        for line in lines[1:]:
            literals[-1] += "\n" + line.literals[0]
            literals += line.literals[1:]
            names += line.names
        return cls(tuple(literals), tuple(names))


def parse_template(
    text: str, line: int, known: Sequence[str], problems: list[tuple[int, str]]
) -> BounceTemplate | None:
    """Return the template of a text; None if it has mistakes, which go to `problems`.

    `known` are the names of its placeholders. A double brace stands for a brace.
    """
    literals, names, end, before = [""], list[str](), 0, len(problems)
    for token in _TOKEN.finditer(text):
        literals[-1] += text[end : token.start()]
        end = token.end()
        found = token[0]
        if found in ("{{", "}}"):
            literals[-1] += found[0]
        elif len(found) == 1:
            problems.append((line, f"a single {found!r}: write {found * 2} for a brace"))
        elif (name := found[1:-1]) not in known:
            advice = hint(name, known) if known else "no placeholder may stand here"
            problems.append((line, f"{found[:60]}: unknown placeholder; {advice}"))
        else:
            names.append(name)
            literals.append("")
    literals[-1] += text[end:]
    return BounceTemplate(tuple(literals), tuple(names)) if len(problems) == before else None


KINDS = ("failed", "delayed", "relayed", "delivered")
_PHRASES = {"said": ("host", "reply"), "answer": ("reply",), "more": ("count",)}
_SECTIONS = (*KINDS, "reasons", "phrases")
_SUBJECT_WORDS = (
    "hostname",
    "sender",
    "recipient",
    "count",
    "reason",
    "message_id",
    "arrival",
    "until",
)
_BODY_WORDS = (*_SUBJECT_WORDS, "recipients")
_HEADING = re.compile(r"\[([^\]]*)\]\s*")
_COMPLETE_LANGUAGE = "en"  # has every text

type Lines = list[tuple[int, str]]
"""Lines of a file with their numbers."""


@dataclass(slots=True)
class Language:
    """The texts of one language; `reasons` are sentences by answer class.

    `written` has the language of each body: that of another file where this one has none.
    """

    tag: str
    written: dict[str, str] = field(default_factory=dict)
    subjects: dict[str, BounceTemplate] = field(default_factory=dict)
    bodies: dict[str, BounceTemplate] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    phrases: dict[str, BounceTemplate] = field(default_factory=dict)

    def over(self, other: Language) -> Language:
        """Return these texts; where one is missing, the other language has it."""
        return Language(
            self.tag,
            other.written | self.written,
            other.subjects | self.subjects,
            other.bodies | self.bodies,
            other.reasons | self.reasons,
            other.phrases | self.phrases,
        )


@dataclass(frozen=True, slots=True)
class BounceTexts:
    """The texts of DSNs in every language, by tags in lower case."""

    languages: Mapping[str, Language]
    default: str = _COMPLETE_LANGUAGE

    def choose(self, tags: Iterable[str]) -> Language:
        """Return the texts of the first tag that has any, else of the default language.

        A tag without texts stands for its shorter forms: pt-br for pt (RFC 4647, section 3.4).
        """
        return self.languages[look_up(tags, self.languages) or self.default]


@cache
def shipped_texts() -> BounceTexts:
    """Return the texts that are shipped with this version."""
    found = {path.stem.lower(): _read(path) for path in (shipped("etc") / "bounces").glob("*.txt")}
    return BounceTexts(
        {tag: language.over(found[_COMPLETE_LANGUAGE]) for tag, language in found.items()}
    )


def read_texts(folder: Path | None, default: str) -> BounceTexts:
    """Return the shipped texts with those of the folder, for a default language.

    Raises ConfigError with every mistake in the folder's files, and ValueError if the default
    language has no text.
    """
    languages = dict(shipped_texts().languages)
    problems: list[str] = []
    for path in sorted(folder.glob("*.txt")) if folder else ():
        try:
            language = _read(path)
        except ConfigError as error:
            problems += error.problems
        else:
            base = BounceTexts(shipped_texts().languages).choose([language.tag])
            languages[language.tag] = language.over(base)
    if problems:
        raise ConfigError(problems)
    if default not in languages:
        raise ValueError(f"there is no text in {default!r}; {hint(default, sorted(languages))}")
    return BounceTexts(languages, default)


def _read(path: Path) -> Language:
    """Return the texts of one file. Raises ConfigError with all its mistakes."""
    if not TAG.fullmatch(path.stem):
        raise ConfigError([f"{path}: {path.stem!r} is no language tag; write en.txt or pt-BR.txt"])
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError([f"{path}: {reason}"]) from None
    language, problems = Language(path.stem.lower()), list[tuple[int, str]]()
    for line, name, lines in _sections(text, problems):
        if name in KINDS:
            _take_text(language, name, line, lines, problems)
        elif name == "reasons":
            for number, key, value in _pairs(lines, [each.value for each in AnswerClass], problems):
                if parse_template(value, number, (), problems):
                    language.reasons[key] = value.replace("{{", "{").replace("}}", "}")
        else:
            for number, key, value in _pairs(lines, list(_PHRASES), problems):
                if template := parse_template(value, number, _PHRASES[key], problems):
                    language.phrases[key] = template
    if problems:
        raise ConfigError([f"{path}:{line}: {reason}" for line, reason in sorted(problems)])
    return language


def _sections(text: str, problems: list[tuple[int, str]]) -> list[tuple[int, str, Lines]]:
    """Return the known sections, each with the number of its first line, and their lines."""
    found: list[tuple[int, str, Lines]] = []
    first: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        if any(unsafe(char) for char in line if char != "\t"):
            problems.append((number, "has a control character"))
            line = printable(line)
        if line.startswith("#"):
            continue
        if heading := _HEADING.fullmatch(line):
            name = heading[1]
            if name not in _SECTIONS:
                problems.append((number, f"[{name}]: unknown section; {hint(name, _SECTIONS)}"))
            elif name in first:
                problems.append(
                    (number, f"[{name}]: is written twice, first on line {first[name]}")
                )
            first.setdefault(name, number)
            found.append((number, name, []))
        elif found:
            found[-1][2].append((number, line))
        elif line:
            problems.append((number, "stands before the first section, such as [failed]"))
    return [section for section in found if section[1] in _SECTIONS]


def _take_text(
    language: Language, name: str, line: int, lines: Lines, problems: list[tuple[int, str]]
) -> None:
    """Take the subject and the body of one kind of DSN."""
    while lines and not lines[0][1]:
        del lines[0]
    while lines and not lines[-1][1]:
        del lines[-1]
    key, _, subject = lines[0][1].partition(":") if lines else ("", "", "")
    if key.lower() != "subject" or not subject.strip():
        problems.append((lines[0][0] if lines else line, f"[{name}]: begins without Subject:"))
        return
    body = lines[1:]
    if body and body[0][1]:
        problems.append((body[0][0], f"[{name}]: an empty line is missing after Subject"))
    elif not any(text for _, text in body):
        problems.append((line, f"[{name}]: has no text"))
    heading = parse_template(subject.strip(), lines[0][0], _SUBJECT_WORDS, problems)
    texts = [parse_template(text, number, _BODY_WORDS, problems) for number, text in body[1:]]
    for number, text in lines if name != "delayed" else ():
        if "{until}" in text.replace("{{", ""):
            problems.append((number, "{until}: belongs to [delayed]"))
    if heading and texts and all(texts):
        language.written[name] = language.tag
        language.subjects[name] = heading
        language.bodies[name] = BounceTemplate.joined([text for text in texts if text])


def _pairs(
    lines: Lines, known: list[str], problems: list[tuple[int, str]]
) -> list[tuple[int, str, str]]:
    """Return line, key and value of the lines `key: value` whose key is known."""
    found = []
    for number, line in lines:
        key, colon, value = line.partition(":")
        if not line:
            continue
        if not colon or not value.strip():
            problems.append((number, f"{line[:40]!r}: expected `key: text`"))
        elif key not in known:
            problems.append((number, f"{key}: unknown key; {hint(key, known)}"))
        else:
            found.append((number, key, value.strip()))
    return found
