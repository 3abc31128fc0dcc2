"""Section `retention` of queued.yaml: how long data without a row is kept."""

from __future__ import annotations

from pydantic import Field

from pgmta.config.types import Period, Section


class Retention(Section):
    """How long the log of attempts, transcripts, and bodies without a row are kept."""

    attempts: Period = Field(
        default=90 * 86400.0,
        ge=86400,
        description="day partitions of attempts are dropped at this age",
    )
    transcripts: Period = Field(
        default=14 * 86400.0,
        ge=86400,
        description="day partitions of transcripts are dropped at this age",
    )
    orphans: Period = Field(
        default=86400.0, ge=600, description="bodies without a row are deleted at this age"
    )
    keys: Period = Field(default=86400.0, ge=60, description="keys of submissions by SQL expire")
