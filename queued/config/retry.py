"""Section `retry` of queued.yaml: when to try again, and when to stop trying."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from pgmta.config.types import Period, Section


class Retry(Section):
    """When to try again, and when to stop trying."""

    intervals: list[Period] = Field(
        default=[60.0, 300.0, 900.0, 3600.0, 10800.0],
        min_length=1,
        description="wait after the 1st, 2nd, … failed attempt; the last one repeats",
    )
    jitter: Annotated[float, Strict()] = Field(
        default=0.2, ge=0, lt=1, description="shorten each wait by up to this share, at random"
    )
    expire: Period = Field(
        default=432000.0, description="hold mail that is still undelivered at this age"
    )
