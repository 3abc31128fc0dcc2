"""The file answers.yaml: groups of hosts, rules for replies, and what codes mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any, Literal

import re2
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from pgmta.config.loader import Problem, load_lines
from pgmta.config.types import Section, each_by, hint, listed, some_listed
from pgmta.config.yaml_file import KeyLines
from pgmta.errors import Stage
from pgmta.mail.answer_class import AnswerClass
from pgmta.shipped import shipped
from queued.config.answer_text import (
    MAX_SEARCHED_CHARACTERS,
    enhanced_forms,
    parse_reply,
    plain_words,
)

_MAX_PATTERN_CHARACTERS = 500
_CODE = re.compile(r"[245](?:\d\d|\dx|xx)")
_ENHANCED = re.compile(r"([245*])\.(\d{1,3}|\*)\.(\d{1,3}|\*)")
_GROUP = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LABELS = r"(?:[a-z0-9_-]{1,63}\.)"
_HOST = re.compile(rf"(?:\*\.{_LABELS}*|{_LABELS}+)[a-z0-9-]{{1,63}}")
_STAGES = {stage.value.lower(): stage for stage in Stage if stage}
_CLASSES = [each.value for each in AnswerClass]
_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.case_sensitive = False
_RE2_OPTIONS.never_capture = True
_RE2_OPTIONS.log_errors = False
_RE2_OPTIONS.max_mem = 1 << 20  # octets of a compiled pattern and what it remembers

type Search = Callable[[bytes], object | None]


def parse_codes(value: Any) -> frozenset[int]:
    """Return the reply codes of `550`, `"45x"`, `"5xx"` or a list; 0 is an error without a reply.

    Raises ValueError.
    """
    codes: set[int] = set()
    for each in some_listed(value):
        text = str(each).lower()
        if isinstance(each, bool) or not (text == "0" or _CODE.fullmatch(text)):
            raise ValueError(f"expected a reply code such as 550, 45x or 5xx, or 0, not {each!r}")
        low = int(text.replace("x", "0"))
        codes.update(range(low, low + 10 ** text.count("x")))
    return frozenset(codes)


def parse_enhanced(value: Any) -> frozenset[str]:
    """Return the enhanced status codes of `5.7.1`, `*.2.2`, `5.7.*` or a list.

    Raises ValueError.
    """
    for each in some_listed(value):
        if not (isinstance(each, str) and _ENHANCED.fullmatch(each)):
            raise ValueError(
                f"expected an enhanced code such as 5.7.1, *.7.1 or 5.7.*, not {each!r}"
            )
    return frozenset(some_listed(value))


def parse_hosts(value: Any) -> str:
    """Return a host name, or `*.` and the end of host names, in lower case. Raises ValueError."""
    text = value.lower().rstrip(".") if isinstance(value, str) else ""
    if not _HOST.fullmatch(text):
        raise ValueError(f"expected a host name or *.name, not {value!r}")
    return text


def parse_group(value: Any) -> str:
    """Return the name of a group of providers. Raises ValueError."""
    if isinstance(value, str) and _GROUP.fullmatch(value):
        return value
    raise ValueError("only small letters, digits, '_' and '-', at most 64")


def parse_class(value: Any) -> AnswerClass:
    """Return the class of this name. Raises ValueError with the nearest one."""
    if isinstance(value, str) and value in _CLASSES:
        return AnswerClass(value)
    raise ValueError(f"no class {value!r}; {hint(str(value), _CLASSES)}")


def _provider(value: Any) -> str:
    return parse_hosts(value) if isinstance(value, str) and "." in value else parse_group(value)


def _command(value: Any) -> Stage:
    found = _STAGES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"no step {value!r}; {hint(str(value), map(str, _STAGES.values()))}")
    return found


def parse_pattern(value: Any) -> str:
    """Return a regular expression in the syntax of RE2.

    Raises ValueError if it is malformed, too large, or matches every text.
    """
    if not isinstance(value, str):
        raise ValueError(f"expected a regular expression, not {value!r}; write it in quotes")
    if len(value) > _MAX_PATTERN_CHARACTERS:
        raise ValueError(f"the pattern has more than {_MAX_PATTERN_CHARACTERS} characters")
    if _compiled(value)(b"") is not None:
        raise ValueError("the pattern matches the empty text, so it matches every reply")
    return value


def compile_patterns(sources: Iterable[str]) -> Search:
    """Return what finds one of the patterns in UTF-8, or else returns None.

    Raises ValueError if they are too large together.
    """
    return _compiled("|".join(f"(?:{source})" for source in sources))


def _compiled(source: str) -> Search:
    try:
        search: Search = re2.compile(source, _RE2_OPTIONS).search
        return search
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
    except UnicodeEncodeError as error:
        reason = str(error)
    raise ValueError(f"is no regular expression of RE2: {' '.join(reason.split())}")


def _example(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"expected a reply such as '550 5.1.1 unknown user', not {value!r}")


class AnswerRule(Section):
    """Conditions on a reply, which must all be met, and its class."""

    provider: Annotated[tuple[str, ...] | None, each_by(_provider)] = Field(
        default=None, description="host name, *.name, name of a group of `providers`, or a list"
    )
    code: Annotated[frozenset[int] | None, BeforeValidator(parse_codes)] = Field(
        default=None, description="reply code such as 550, 45x or 5xx, or a list; 0: no reply came"
    )
    enhanced: Annotated[frozenset[str] | None, BeforeValidator(parse_enhanced)] = Field(
        default=None, description="enhanced status code such as 5.7.1 or *.7.*, or a list"
    )
    text: Annotated[tuple[str, ...] | None, each_by(parse_pattern)] = Field(
        default=None, description="regular expression in the first 1 KB, or a list; any case"
    )
    command: Annotated[tuple[Stage, ...] | None, each_by(_command)] = Field(
        default=None, description="step in which it came, as RCPT or end of data, or a list"
    )
    answer_class: Annotated[AnswerClass, BeforeValidator(parse_class)] = Field(
        alias="class", description="what the reply means: docs/mail/answers.md has the classes"
    )
    lasting: Literal["temporary", "permanent"] | None = Field(
        default=None, description="if the code lies: temporary or permanent"
    )
    example: Annotated[tuple[str, ...], each_by(_example)] = Field(
        default=(), description="a reply that the rule is for, or a list; they are checked"
    )

    _search: Search | None = PrivateAttr(default=None)

    @property
    def search(self) -> Search | None:
        """The search for any of `text`; None if any text will do."""
        return self._search

    @model_validator(mode="after")
    def _for_something(self) -> AnswerRule:
        if self.text:
            self._search = compile_patterns(self.text)
        if not any((self.provider, self.code, self.enhanced, self.text, self.command)):
            raise ValueError("a rule needs provider, code, enhanced, text or command")
        return self

    def fits(self, example: str) -> bool:
        """Return whether code, enhanced code and text of a reply are those of the rule."""
        reply = parse_reply(example)
        words, enhanced = plain_words(reply.text[:MAX_SEARCHED_CHARACTERS])
        return (
            (reply.code != 0 if self.code is None else reply.code in self.code)
            and (self.enhanced is None or not self.enhanced.isdisjoint(enhanced_forms(enhanced)))
            and (self.search is None or self.search(words.encode(errors="replace")) is not None)
        )


_TABLE_KEY = re.compile(r"(?:[245]\.)?\d{1,3}\.(?:\d{1,3}|\*)")
_TABLE_CODE = re.compile(r"([2345]\d\d|[45]xx)(?: (.+))?")


def _subject(value: Any) -> str:
    if isinstance(value, str) and _TABLE_KEY.fullmatch(value):
        return value
    raise ValueError(f"expected an enhanced code such as 7.1, 7.* or 5.7.1, not {value!r}")


def _code(value: Any) -> str:
    found = _TABLE_CODE.fullmatch(value) if isinstance(value, str) else None
    if found and found[2] in (None, *Stage):
        return str(value)
    if found:
        raise ValueError(f"no step {found[2]!r}; {hint(found[2], map(str, Stage))}")
    raise ValueError(f"expected a code, or a code and a step such as 552 RCPT, not {value!r}")


def _hosts(value: Any) -> list[str]:
    return [parse_hosts(each) for each in listed(value)]


_Class = Annotated[AnswerClass, BeforeValidator(parse_class)]


class Answers(Section):
    """The whole of answers.yaml."""

    providers: dict[
        Annotated[str, BeforeValidator(parse_group)],
        Annotated[list[str], BeforeValidator(_hosts)],
    ] = Field(default={}, description="names of groups → host names, or *.name for their ends")
    rules: list[AnswerRule] = Field(
        default=[], description="the first that matches says what a reply means"
    )
    enhanced: dict[Annotated[str, BeforeValidator(_subject)], _Class | None] = Field(
        default={},
        description="enhanced code, with or without its class → class, if no rule matches; "
        "null: ask `codes`",
    )
    codes: dict[Annotated[str, BeforeValidator(_code)], _Class] = Field(
        default={}, description="reply code, or code and step → class, if nothing else matches"
    )
    _places: list[str] = PrivateAttr(default_factory=list)

    def place(self, number: int) -> str:
        """Return where the rule of this number is: file and line."""
        return self._places[number] if number < len(self._places) else f"rules[{number}]"

    def found_at(self, name: str, lines: KeyLines) -> Answers:
        """Return the same with the places of the rules: the file and their lines."""
        answers = self.model_copy()
        places = [f"{name}:{lines['rules', n]}" for n in range(len(self.rules))]
        answers._places = places  # noqa: SLF001 - the copy's own
        return answers

    def problems(self, shipped_groups: set[str]) -> list[Problem]:
        """Return the mistakes that no single key has."""
        known = {*self.providers, *shipped_groups}
        found: list[Problem] = []
        for number, rule in enumerate(self.rules):
            for name in rule.provider or ():
                if "." not in name and name not in known:
                    reason = f"no group {name!r}; {hint(name, sorted(known))}"
                    found.append((("rules", number, "provider"), reason))
            for example in rule.example:
                if not rule.fits(example):
                    reason = f"the rule does not take {example[:60]!r}"
                    found.append((("rules", number, "example"), reason))
        return found


@cache
def shipped_answers() -> tuple[Answers, ...]:
    """Return the rules that are shipped: those of large providers, and those for any host."""
    return tuple(map(_shipped, ("answers_providers.yaml", "answers.yaml")))


def _shipped(name: str) -> Answers:
    answers, lines = load_lines(shipped("etc") / name, Answers)
    return answers.found_at(f"shipped {name}", lines)
