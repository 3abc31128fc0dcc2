"""Section `routes` of queued.yaml: its keys and values."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from pgmta.config.types import HostPort, Section, each_by, parse_host_port
from pgmta.errors import AddressError
from pgmta.mail.address import domains_above, mailbox_key, normalise_domain, parse_mailbox


def _parse_target(value: Any) -> HostPort | Literal["mx"]:
    if isinstance(value, str) and value.lower() == "mx":
        return "mx"
    return parse_host_port(value)


def parse_pattern(pattern: str) -> str:
    """Return a domain, `*.domain` or `*`, normalised. Raises ValueError."""
    bare = pattern.removeprefix("*.") if pattern != "*" else "example.com"
    try:
        normal = normalise_domain(bare)
    except AddressError as error:
        raise ValueError(f"expected a domain, *.domain or *: {error}") from None
    return pattern if pattern == "*" else pattern[: len(pattern) - len(bare)] + normal


def domain_fits(patterns: Collection[str] | None, domain: str) -> bool:
    """Return whether a domain is one of the patterns; None stands for all domains."""
    if patterns is None or "*" in patterns or domain in patterns:
        return True
    return any(f"*.{above}" in patterns for above in domains_above(domain))


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
    try:
        return parse_mailbox(str(word), utf8=True)[0].lower()
    except AddressError as error:
        raise ValueError(f"expected an address or <>: {error}") from None


def _sender_key(word: Any) -> str:
    return mailbox_key(_sender(word))


def _tenant(word: Any) -> str:
    text = str(word) if type(word) is int else word
    if isinstance(text, str) and _TENANT.fullmatch(text):
        return text
    raise ValueError(f"expected 1 to 64 letters, digits and . _ @ + -, not {word!r}")


def _text(word: Any) -> str:
    """Return a value of metadata as PostgreSQL's `metadata ->> 'KEY'` has it."""
    if isinstance(word, bool):
        return str(word).lower()
    if isinstance(word, str | int):
        return str(word)
    raise ValueError(f"expected a text, not {word!r}")


Patterns = Annotated[list[str], each_by(_pattern)]
Senders = Annotated[list[str], each_by(_sender)]
"""As PostgreSQL compares them by lower(sender)."""

SenderKeys = Annotated[list[str], each_by(_sender_key)]
"""As mailbox_key() has them."""

Tenants = Annotated[list[str], each_by(_tenant)]
Values = Annotated[list[str], each_by(_text)]


class MailConditions(Section):
    """Has the keys `metadata.KEY`, which the field `metadata` holds."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        """Gather the keys `metadata.KEY` in one field."""
        if not isinstance(data, dict):
            return data
        found = {match[1]: data[key] for key in data if (match := _METADATA.fullmatch(key))}
        rest = {key: data[key] for key in data if not _METADATA.fullmatch(key)}
        return rest | {"metadata.KEY": found} if found else rest
