"""Keys of campaigns in the section `retention` of queued.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pgmta.config.types import Period, Section, at_least


class CampaignRetention(Section):
    """How long campaigns and their recipients are kept."""

    recipients: Annotated[Period, at_least("30d")] = Field(
        default=180 * 86400.0,
        description="recipients of a campaign are deleted this long after its last job ended; "
        "until then their links unsubscribe, and the campaign can be resumed",
    )
    campaigns: Annotated[Period, at_least("30d")] = Field(
        default=730 * 86400.0, description="campaigns with their totals likewise"
    )

    @model_validator(mode="after")
    def _recipients_first(self) -> CampaignRetention:
        if self.campaigns < self.recipients:
            raise ValueError("campaigns is less than recipients, which go before them")
        return self
