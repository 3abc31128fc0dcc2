"""One of `routes` in shaping.yaml: which mail it is for, and where that goes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pgmta.address import parse_mailbox
from pgmta.config.types import Section, Whole
from pgmta.errors import AddressError
from queued.config.retry import RouteRetry
from queued.config.routes import parse_pattern
from queued.config.shaping_host import ShapingHost
from queued.config.shaping_rewrite import ShapingRewrite

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")  # as submit() of SQL takes it
_METADATA = re.compile(r"metadata\.(.+)", re.DOTALL)


def _words(parse: Callable[[Any], str]) -> BeforeValidator:
    """Return the reader of one word or a list of words."""

    def read(value: Any) -> Any:
        words = value if isinstance(value, list) else [value]
        if not words:
            raise ValueError("the list is empty")
        return [parse(word) for word in words]

    return BeforeValidator(read)


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


def _name(word: Any) -> str | None:
    if word is None or (isinstance(word, str) and _NAME.fullmatch(word)):
        return word
    raise ValueError("only letters, digits, '_', '.' and '-', at most 64")


def _targets(value: Any) -> Any:
    if isinstance(value, str) and value.lower() == "mx":
        return []
    if value == []:
        raise ValueError("expected mx, a host or a list of hosts")
    return value if isinstance(value, list) else [value]


Patterns = Annotated[list[str], _words(_pattern)]
Senders = Annotated[list[str], _words(_sender)]
Tenants = Annotated[list[str], _words(_tenant)]
Values = Annotated[list[str], _words(_text)]


class ShapingRoute(Section):
    """A route. All of its conditions have to be met; one without conditions is for all mail."""

    name: Annotated[str | None, BeforeValidator(_name)] = Field(
        default=None, description="its name in logs and `queuectl route`; default: its number"
    )
    domain: Patterns | None = Field(
        default=None, description="recipient domain, *.domain (all below it), * or a list of these"
    )
    sender_domain: Patterns | None = Field(
        default=None, description="domain of the sender, likewise"
    )
    sender: Senders | None = Field(
        default=None, description="address of the sender, <> for none, or a list of these"
    )
    tenant: Tenants | None = Field(
        default=None, description="tenant for whom the mail is, or a list of these"
    )
    metadata: dict[str, Values] = Field(
        default={}, alias="metadata.KEY", description="value of this metadata, or a list of values"
    )
    to: Annotated[list[ShapingHost], BeforeValidator(_targets)] = Field(
        description="mx, a host, or a list of hosts: each host:port or a mapping",
    )
    port: Whole | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="of hosts without one; default: 25, with lmtp 24, with implicit 465; of MX "
        "hosts: delivery.port",
    )
    protocol: Literal["smtp", "lmtp"] = Field(
        default="smtp", description="lmtp: to a mailbox server (RFC 2033)"
    )
    implicit: bool = Field(default=False, description="TLS from the first octet (RFC 8314)")
    tls: Literal["best", "none", "opportunistic", "encrypt", "verify", "dane"] | None = Field(
        default=None,
        description="as delivery.tls.mode, which is the default; default with a login: verify, or "
        "dane if the host has TLSA records",
    )
    login: str | None = Field(default=None, description="one of `logins`; only over TLS")
    retry: RouteRetry | None = Field(
        default=None,
        description="keys of the section retry of queued.yaml that differ for its mail",
    )
    rewrite: ShapingRewrite | None = Field(
        default=None, description="changes to its mail as it leaves"
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
