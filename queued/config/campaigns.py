"""Section `campaigns` of queued.yaml: where the links in their mail lead."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pgmta.config.types import Section
from pgmta.config.urls import parse_public_url
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


class Campaigns(Section):
    """Say how recipients of campaigns unsubscribe."""

    url: Annotated[str, BeforeValidator(parse_public_url)] | None = Field(
        default=None,
        description="`public.url` of web.yaml, with which links begin that unsubscribe; null: mail "
        "with such a link waits",
    )
    complaints: list[Annotated[str, BeforeValidator(_mailbox)]] = Field(
        default=[],
        description="addresses to which providers send complaints (ARF); a complaint about mail "
        "with a link or VERP address of ours suppresses, and all mail there goes on as usual",
    )
