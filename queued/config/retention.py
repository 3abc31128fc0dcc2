"""Section `retention` of queued.yaml: how long data without a row is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pgmta.config.types import Period, Section, at_least


class Retention(Section):
    """How long the log of attempts, transcripts, and bodies without a row are kept."""

    attempts: Annotated[Period, at_least("1d")] = Field(
        default=90 * 86400.0,
        description="day partitions of attempts are dropped at this age",
    )
    transcripts: Annotated[Period, at_least("1d")] = Field(
        default=14 * 86400.0,
        description="day partitions of transcripts are dropped at this age",
    )
    orphans: Annotated[Period, at_least("10m")] = Field(
        default=86400.0, description="bodies without a row are deleted at this age"
    )
    keys: Annotated[Period, at_least("1m")] = Field(
        default=86400.0, description="keys of submissions by SQL expire"
    )
