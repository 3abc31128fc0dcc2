"""Keys of the section `public` of web.yaml: pages of the application."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pgmta.config.types import Section
from pgmta.config.urls import parse_return_url

ReturnUrl = Annotated[str, BeforeValidator(parse_return_url)]


class ReturnPages(Section):
    """Name the pages of the application to which browsers return."""

    activated: ReturnUrl | None = Field(
        default=None,
        description="page of the application to which an activation returns; null: a page of ours",
    )
    recovered: ReturnUrl | None = Field(
        default=None,
        description="page of the application that takes a new password; a parameter `proof` is "
        "added for lifecycle.proof_take(); null: there is no page /recover",
    )
