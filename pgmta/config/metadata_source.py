"""An entry of the section `metadata`: from what the value of a key is made."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from pgmta.config.types import Section, Whole, hint
from pgmta.mail.metadata import OWN_KEYS

SOURCES = (
    "listener",
    "client",
    "user",
    "sender",
    "sender_domain",
    "recipient",
    "recipient_domain",
)
_HEADER = re.compile(r"header:[!-9;-~]+")


def _parse_source(value: str) -> str:
    if value in SOURCES or _HEADER.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is no source; {hint(value, (*SOURCES, 'header:NAME'))}")


class MetadataSource(Section):
    """The source of one metadata key's value."""

    source: Annotated[str, AfterValidator(_parse_source)] = Field(
        alias="from",
        description="listener, client, user, sender, sender_domain, recipient, recipient_domain "
        "or header:NAME",
    )
    map: dict[str, str] | None = Field(
        default=None, description="value → metadata; others get the default"
    )
    buckets: Whole | None = Field(
        default=None, ge=2, le=10_000, description="a stable hash of the value: '1' to this number"
    )
    default: str | None = Field(
        default=None, description="for an empty or unmapped value; absent: the key is left out"
    )

    @property
    def of_recipient(self) -> bool:
        """Whether recipients of one message may get different values."""
        return self.source.startswith("recipient")

    @model_validator(mode="after")
    def _one_way(self) -> MetadataSource:
        if self.map and self.buckets:
            raise ValueError("map and buckets exclude each other")
        return self


def parse_key(key: str) -> str:
    """Return a metadata key; raises ValueError."""
    if not key or len(key) > 64 or not key.isprintable():
        raise ValueError("a metadata key is a word of at most 64 characters")
    if key in OWN_KEYS:
        raise ValueError(f"{key} is a key that pgmta alone gives")
    return key
