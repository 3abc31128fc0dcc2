"""The conditions on mail that routes and rules of signing share, and their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pgmta.config.types import HostPort, Section, checked, each_by, parse_host_port, some_listed
from pgmta.mail.address import normalise_domain, parse_mailbox
from pgmta.selection import Selection, Term, priorities


def _parse_target(value: Any) -> HostPort | Literal["mx"]:
    if isinstance(value, str) and value.lower() == "mx":
        return "mx"
    if isinstance(value, dict | list):
        raise ValueError("give `mx` or host:port; a route with keys is for shaping.yaml")
    return parse_host_port(value)


def parse_pattern(pattern: str) -> str:
    """Return a domain, `*.domain` or `*`, normalised. Raises ValueError."""
    bare = pattern.removeprefix("*.") if pattern != "*" else "example.com"
    normal = checked("expected a domain, *.domain or *: ", normalise_domain, bare)
    return pattern if pattern == "*" else pattern[: len(pattern) - len(bare)] + normal


def domain_term(field: str, patterns: Sequence[str] | None) -> Term | None:
    """Return the term of domains and patterns; None if they stand for all domains."""
    return None if patterns is None or "*" in patterns else Term.of(field, patterns)


Target = Annotated[HostPort | Literal["mx"], BeforeValidator(_parse_target)]
Pattern = Annotated[str, AfterValidator(parse_pattern)]


_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")  # as submit() of SQL takes it
_METADATA = re.compile(r"metadata\.(.+)", re.DOTALL)


def _pattern(word: Any) -> str:
    if not isinstance(word, str):
        raise ValueError(f"expected a domain, *.domain or *, not {word!r}")
    return parse_pattern(word)


def _sender(word: Any) -> str:
    if word == "<>":
        return ""
    return checked("expected an address or <>: ", parse_mailbox, str(word), utf8=True)[0]


def _tenant(word: Any) -> str:
    text = str(word) if type(word) is int else word
    if isinstance(text, str) and _TENANT.fullmatch(text):
        return text
    raise ValueError(f"expected 1 to 64 letters, digits and . _ @ + -, not {word!r}")


def _priorities(value: Any) -> list[int]:
    return sorted({each for word in some_listed(value) for each in priorities(str(word))})


def _text(word: Any) -> str:
    """Return a value of metadata as PostgreSQL's `metadata ->> 'KEY'` has it."""
    if isinstance(word, bool):
        return str(word).lower()
    if isinstance(word, str | int):
        return str(word)
    raise ValueError(f"expected a text, not {word!r}")


Patterns = Annotated[list[str], each_by(_pattern)]
Senders = Annotated[list[str], each_by(_sender)]
"""Compared without the case of ASCII's letters."""

Tenants = Annotated[list[str], each_by(_tenant)]
Values = Annotated[list[str], each_by(_text)]
Priorities = Annotated[list[int], BeforeValidator(_priorities)]


class MailConditions(Section):
    """The conditions that routes and rules of signing share. All of them have to be met.

    It has the keys `metadata.KEY`, which the field `metadata` holds.
    """

    sender_domain: Patterns | None = Field(
        default=None,
        description="domain of the sender, *.domain (all below it), * or a list of these",
    )
    sender: Senders | None = Field(
        default=None, description="address of the sender, <> for none, or a list of these"
    )
    tenant: Tenants | None = Field(
        default=None, description="tenant for whom the mail is, or a list of these"
    )
    priority: Priorities | None = Field(
        default=None, description="priority: 3, <=3, 2..5 or a list of these; 0 is claimed first"
    )
    metadata: dict[str, Values] = Field(
        default={}, alias="metadata.KEY", description="value of this metadata, or a list of values"
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        """Gather the keys `metadata.KEY` in one field."""
        if not isinstance(data, dict):
            return data
        found = {match[1]: data[key] for key in data if (match := _METADATA.fullmatch(key))}
        rest = {key: data[key] for key in data if not _METADATA.fullmatch(key)}
        return rest | {"metadata.KEY": found} if found else rest

    @cached_property
    def of_path(self) -> Selection:
        """Return the conditions on the reverse-path."""
        domain = domain_term("sender_domain", self.sender_domain)
        return Selection.every(self._term("sender", fold=True), domain)

    @cached_property
    def of_row(self) -> Selection:
        """Return the other conditions on rows."""
        metadata = (Term(f"metadata.{key}", words) for key, words in self.metadata.items())
        return Selection.every(self._term("tenant"), self._term("priority"), *metadata)

    def _term(self, field: str, *, fold: bool = False) -> Term | None:
        words = getattr(self, field)
        return None if words is None else Term(field, words, fold=fold)
