"""The key of events in the section `retention` of queued.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pgmta.config.types import Period, Section, at_least


class EventRetention(Section):
    """How long events are kept for readers that come late."""

    events: Annotated[Period, at_least("4d")] = Field(
        default=7 * 86400.0,
        description="day partitions of events that ended longer ago than this are dropped; "
        "webhooks are tried for three days",
    )
