"""An entry of `bounces` in smtpd.yaml: whose mail is bounced if it fails."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pgmta.config.types import NetworkList, Section

type Audience = Literal["anybody", "authenticated", "none"]


class BounceRule(Section):
    """Clients or users, and whether their mail is bounced."""

    networks: NetworkList | None = Field(
        default=None, min_length=1, description="of clients; absent: any"
    )
    users: list[str] | None = Field(
        default=None, min_length=1, description="names of users who have logged in; absent: any"
    )
    audience: Audience = Field(
        alias="for",
        description="anybody, authenticated or none, instead of `bounces` of the listener",
    )

    @model_validator(mode="after")
    def _of_somebody(self) -> BounceRule:
        if self.networks is None and self.users is None:
            raise ValueError("needs networks or users; `bounces` of a listener is for all clients")
        if self.users is not None and self.networks is None and self.audience == "authenticated":
            raise ValueError("users have logged in: for is anybody or none")
        return self
