"""The rules of answers.yaml, ready for use: by provider, code, enhanced code and step (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pgmta.config.types import without_port
from pgmta.errors import Stage
from pgmta.mail.address import domains_above
from pgmta.mail.answer_class import AnswerClass
from queued.config.answer_text import enhanced_forms
from queued.config.answers import AnswerRule, Answers, Search, shipped_answers

_MAX_CACHED_HOSTS = 4096  # with their providers
_NO_PROVIDERS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Answer:
    """The class of a reply.

    `lasting` is set only by a rule that says that the code lies. `rule` says by what it was read:
    file and line of a rule, or the place in a table.
    """

    answer_class: AnswerClass
    lasting: Literal["", "temporary", "permanent"] = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule with the groups of providers as sets; None stands for no condition."""

    providers: frozenset[str] | None
    codes: frozenset[int] | None
    enhanced: frozenset[str] | None
    stages: tuple[Stage, ...] | None
    search: Search | None
    answer: Answer


class AnswerIndex:
    """The rules of several books one after the other; the tables of earlier books go first."""

    def __init__(self, books: Sequence[Answers]) -> None:
        self._groups: dict[str, set[str]] = {}  # names of groups and host names, by host name
        groups: dict[str, list[str]] = {}
        for book in reversed(books):
            groups |= book.providers
        for name, hosts in groups.items():
            for host in hosts:
                self._groups.setdefault(host, set()).add(name)
        self._rules: list[CompiledRule] = []
        self._enhanced: dict[str, tuple[AnswerClass | None, str]] = {}
        self._codes: dict[str, tuple[AnswerClass, str]] = {}
        for book in books:
            for number, rule in enumerate(book.rules):
                self._rules.append(_compiled(rule, book.place(number)))
                for name in rule.provider or ():
                    if "." in name:
                        self._groups.setdefault(name, set()).add(name)
            for key, of_enhanced in book.enhanced.items():
                self._enhanced.setdefault(key, (of_enhanced, f"enhanced {key}"))
            for key, of_code in book.codes.items():
                self._codes.setdefault(key, (of_code, f"codes {key}"))
        self._hosts: dict[str, frozenset[str]] = {}

    def providers(self, host: str) -> frozenset[str]:
        """Return the groups and names that rules know of a next hop, which is host:port."""
        found = self._hosts.get(host)
        if found is None:
            found = self._find(host)
            if len(self._hosts) >= _MAX_CACHED_HOSTS:
                self._hosts.clear()
            self._hosts[host] = found
        return found

    def _find(self, host: str) -> frozenset[str]:
        name = without_port(host).lower().rstrip(".")[:253]
        names = (name, *(f"*.{above}" for above in domains_above(name)))
        return _NO_PROVIDERS.union(*(self._groups.get(each, _NO_PROVIDERS) for each in names))

    def candidates(
        self, providers: frozenset[str], code: int, enhanced: str, stage: Stage
    ) -> tuple[CompiledRule, ...]:
        """Return the rules whose other conditions are met, up to the first one without a text."""
        forms = enhanced_forms(enhanced)
        found = []
        for rule in self._rules:
            if (
                (rule.codes is None and code == 0)
                or (rule.codes is not None and code not in rule.codes)
                or (rule.providers is not None and rule.providers.isdisjoint(providers))
                or (rule.enhanced is not None and rule.enhanced.isdisjoint(forms))
                or (rule.stages is not None and stage not in rule.stages)
            ):
                continue
            found.append(rule)
            if rule.search is None:
                break
        return tuple(found)

    def enhanced(self, code: str) -> tuple[AnswerClass, str] | None:
        """Return the class of an enhanced code, and its line in the table, if any."""
        detail = code[2:]
        subject = f"{detail.partition('.')[0]}.*"
        for key in (code, detail, f"{code[:2]}{subject}", subject):
            if key in self._enhanced:
                answer_class, place = self._enhanced[key]
                return (answer_class, place) if answer_class else None
        return None

    def code(self, code: int, stage: Stage) -> tuple[AnswerClass, str] | None:
        """Return the class of a reply code in a step, and its line in the table."""
        for key in (f"{code} {stage.value}", f"{code}", f"{code // 100}xx"):
            if found := self._codes.get(key):
                return found
        return None


@cache
def shipped_index() -> AnswerIndex:
    """Return the rules that are shipped."""
    return AnswerIndex(shipped_answers())


def _compiled(rule: AnswerRule, place: str) -> CompiledRule:
    return CompiledRule(
        frozenset(rule.provider) if rule.provider else None,
        rule.code,
        rule.enhanced,
        rule.command,
        rule.search,
        Answer(rule.answer_class, rule.lasting or "", place),
    )
