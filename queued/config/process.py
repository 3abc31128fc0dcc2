"""Section `process` of queued.yaml: the times that hold for every worker of the process."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pgmta.config.types import Duration, Period, Section, at_least


class Process(Section):
    """The times that hold for every worker of the process."""

    lease: Annotated[Period, at_least("3s")] = Field(
        default=60.0, description="other workers take over a dead worker's rows after this"
    )
    poll: Period = Field(
        default=1.0,
        description="how often to poll for due rows; of several workers that share rows only the "
        "one with the turn does, and the others poll five times less often",
    )
    watch: Period | None = Field(
        default=0.04,
        description="how often to look for mail of SQL programs, which send no notification; up "
        "to six times less often after a quiet time; null: it waits for the poll",
    )
    drain: Duration = Field(
        default=30.0, description="at SIGTERM, deliveries under way have this long to end"
    )
