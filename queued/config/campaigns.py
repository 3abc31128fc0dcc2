"""Section `campaigns` of queued.yaml: where the links in their mail lead."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pgmta.config.types import Section
from pgmta.config.urls import parse_public_url


class Campaigns(Section):
    """Say how recipients of campaigns unsubscribe."""

    url: Annotated[str, BeforeValidator(parse_public_url)] | None = Field(
        default=None,
        description="`public.url` of web.yaml, with which links begin that unsubscribe; null: mail "
        "with such a link waits",
    )
