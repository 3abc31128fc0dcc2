"""The whole of answers.yaml: what the replies of next hops mean. Twin of etc/answers.yaml."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr

from pgmta.answer_class import AnswerClass
from pgmta.config.loader import Problem, load_lines
from pgmta.config.types import Section, hint, listed
from pgmta.errors import Stage
from pgmta.shipped import shipped
from queued.config.answer_rule import (
    AnswerRule,
    parse_class,
    parse_group,
    parse_hosts,
)

_SUBJECT = re.compile(r"(?:[245]\.)?\d{1,3}\.(?:\d{1,3}|\*)")
_CODE = re.compile(r"([2345]\d\d|[45]xx)(?: (.+))?")


def _subject(value: Any) -> str:
    if isinstance(value, str) and _SUBJECT.fullmatch(value):
        return value
    raise ValueError(f"expected an enhanced code such as 7.1, 7.* or 5.7.1, not {value!r}")


def _code(value: Any) -> str:
    found = _CODE.fullmatch(value) if isinstance(value, str) else None
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

    def found_at(self, places: list[str]) -> Answers:
        """Return the same with the places of the rules."""
        answers = self.model_copy()
        answers._places = places
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
    numbers = range(len(answers.rules))
    return answers.found_at([f"shipped {name}:{lines['rules', number]}" for number in numbers])
