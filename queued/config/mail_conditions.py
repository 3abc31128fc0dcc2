"""Conditions on mail, as routes and rules of signing have them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import model_validator

from pgmta.address import mailbox_key, parse_mailbox
from pgmta.config.types import Section, each_by
from pgmta.errors import AddressError
from queued.config.routes import parse_pattern

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
