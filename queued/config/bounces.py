"""Section `bounces` of queued.yaml: DSNs, for whom, how many, and with which text."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from pydantic import Field, field_validator

from pgmta.config.types import Duration, Period, Section, Size, Whole, checked
from pgmta.mail.address import parse_mailbox
from pgmta.mail.language import TAG
from pgmta.mail.text import unsafe

_NAMED = re.compile(r"([^<>]*)<([^<>]*)>")
DEFAULT_NAME = "Mail Delivery System"
"""The display name of the default `from`."""


def split_named(text: str) -> tuple[str, str]:
    """Return name and address of `Name <address>`, and '' with the text if it has no brackets."""
    match = _NAMED.fullmatch(text.strip())
    return (match[1].strip(), match[2]) if match else ("", text.strip())


class BounceLimits(Section):
    """The DSNs of an hour, over all workers. The surplus goes to HOLD."""

    sender: Whole = Field(default=100, ge=0, description="DSNs to one address in an hour, at most")
    all: Whole = Field(default=10_000, ge=0, description="DSNs in an hour, at most")


class Bounces(Section):
    """DSNs: for whom, how many, and with which text."""

    origin: str | None = Field(
        default=None,
        alias="from",
        description="field From of DSNs, `Name <address>` or an address; null: Mail Delivery "
        "System <mailer-daemon@HOSTNAME>",
    )
    postmaster: str | None = Field(
        default=None,
        description="address that gets a DSN which can't go to a sender: of mail with the null "
        "reverse-path, and of a DSN; null: the row goes to HOLD",
    )
    gather: Duration = Field(
        default=5.0,
        description="a DSN waits this long for other recipients of its message that fail too",
    )
    delay: list[Period] = Field(
        default=[14400.0],
        description="a delay notice goes out if mail is undelivered after these times; []: none",
    )
    content: Size = Field(
        default=50 << 10,
        description="a DSN of a failure returns content up to this size, unless RET=HDRS, and of "
        "larger content the header",
    )
    templates: Path | None = Field(
        default=None,
        description="folder with texts by language, relative to this file, that go before the "
        "shipped ones; null: the shipped ones alone",
    )
    language: str = Field(
        default="en", description="of DSNs to senders whose mail names no language with a text"
    )
    limits: BounceLimits = Field(default=BounceLimits())

    @field_validator("origin")
    @classmethod
    def _sender(cls, value: str | None) -> str | None:
        if value is None:
            return None
        name, address = split_named(value)
        if any(map(unsafe, name)):
            raise ValueError("the name has a control character")
        checked("", parse_mailbox, address)
        return f"{name} <{address}>" if name else address

    @field_validator("postmaster")
    @classmethod
    def _postmaster(cls, value: str | None) -> str | None:
        return None if value is None else checked("", parse_mailbox, value, utf8=True)[0]

    @field_validator("delay")
    @classmethod
    def _ascending(cls, value: list[float]) -> list[float]:
        if any(later <= earlier for earlier, later in pairwise(value)):
            raise ValueError("each time must be longer than the one before it")
        return value

    @field_validator("language")
    @classmethod
    def _tag(cls, value: str) -> str:
        if not TAG.fullmatch(value):
            raise ValueError(f"{value!r} is no language tag; write for example en, de or pt-BR")
        return value.lower()

    def from_field(self, hostname: str) -> str:
        """Return `Name <address>` or the address for the field From of a host's DSNs."""
        return self.origin or f"{DEFAULT_NAME} <mailer-daemon@{hostname}>"
