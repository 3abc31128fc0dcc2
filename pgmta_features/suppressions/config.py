"""Section `suppressions` of queued.yaml: where complaints come."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from pgmta.config.types import Period, Section, at_least
from pgmta.errors import AddressError
from pgmta.mail.address import mailbox_key, parse_mailbox


def _mailbox(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected an address")
    try:
        parse_mailbox(value, utf8=True)
    except AddressError as error:
        raise ValueError(str(error)) from None
    return mailbox_key(value)


class SoftBounces(Section):
    """Say when a mailbox that is full for long is suppressed."""

    number: int = Field(
        default=5, ge=0, le=1000, description="failures for good that suppress; 0: they never do"
    )
    days: int = Field(default=3, ge=1, le=365, description="on at least so many different days")
    period: Annotated[Period, at_least("1d")] = Field(
        default=30 * 86400.0, validate_default=True, description="within this time"
    )
    lasts: Period = Field(
        default=90 * 86400.0, description="after this time the address gets mail again"
    )

    @field_validator("period")
    @classmethod
    def _has_the_days(cls, period: float, info: ValidationInfo) -> float:
        days = info.data.get("days", 1)
        if period <= (days - 1) * 86400:
            raise ValueError(f"has no {days} days, as `days` asks for: the mailbox never counts")
        return period


class Suppressions(Section):
    """Say who gets no mail any more."""

    soft_bounces: SoftBounces = Field(
        default=SoftBounces(), description="mailboxes that are full for long, by failures for good"
    )

    complaints: list[Annotated[str, BeforeValidator(_mailbox)]] = Field(
        default=[],
        description="addresses to which providers send complaints (ARF); a complaint about mail "
        "with a link or VERP address of ours suppresses, and all mail there goes on as usual",
    )
