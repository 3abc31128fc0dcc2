"""Section `urgent` of queued.yaml: slots and connections that are reserved."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, Strict

from pgmta.config.types import Section, Whole


class Urgent(Section):
    """Slots and connections that are reserved for mail which must not wait behind other mail."""

    priority: Annotated[int, Strict(), Field(ge=0, le=3)] | None = Field(
        default=1,
        description="mail of this priority (0 to 3) or a lower number is urgent; null: none",
    )
    share: Annotated[float, Strict()] = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="reserved for it: slots beside workers[].concurrency, as a share of these, "
        "rounded up; and connections of delivery.connections, rounded down",
    )
    bound: Whole = Field(
        default=5, ge=1, le=10_000, description="reserved slots that rows of one next hop may use"
    )

    def slots(self, concurrency: int) -> int:
        """Return the reserved slots of a worker with that concurrency."""
        return 0 if self.priority is None else math.ceil(self.share * concurrency)

    def connections(self, most: int) -> int:
        """Return how many of `most` connections other mail leaves free."""
        return 0 if self.priority is None else int(self.share * most)
