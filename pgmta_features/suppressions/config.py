"""Section `suppressions` of queued.yaml: where complaints come."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pgmta.config.types import Section
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


class Suppressions(Section):
    """Say who gets no mail any more."""

    complaints: list[Annotated[str, BeforeValidator(_mailbox)]] = Field(
        default=[],
        description="addresses to which providers send complaints (ARF); a complaint about mail "
        "with a link or VERP address of ours suppresses, and all mail there goes on as usual",
    )
