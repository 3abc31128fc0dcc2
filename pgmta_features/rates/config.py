"""The keys `rate`, `burst` and `per` of a route in shaping.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pgmta.config.types import Whole
from pgmta.model import RouteLimit
from queued.config import ShapingRoute, ShownLimit

from .rate import Rate
from .route_rate import SHOWN, RouteRate

_SHARED_BY = ("destination", "sender_domain", "tenant", "route")


def _per(word: Any) -> str:
    if isinstance(word, str) and (word in _SHARED_BY or re.fullmatch(r"metadata\..{1,255}", word)):
        return word
    raise ValueError(f"expected {', '.join(_SHARED_BY)} or metadata.KEY, not {word!r}")


class RatedRoute(ShapingRoute):
    """A route with a rate."""

    rate: Rate | None = Field(
        default=None,
        description="recipients at most, such as 10/min or 50/s, over all workers; needs a name",
    )
    burst: Whole = Field(
        default=1, ge=1, le=1_000_000, description="recipients at once after a pause; 1: no burst"
    )
    per: Annotated[str, BeforeValidator(_per)] = Field(
        default="destination",
        description="each of these has the rate: destination, sender_domain, tenant, metadata.KEY; "
        "or the whole route",
    )

    @property
    def limits(self) -> tuple[RouteLimit, ...]:
        """What its mail waits for beside a connection: a time of its rate, too."""
        if self.rate is None or self.name is None:  # `check` refuses such a limit
            return super().limits
        by = {"route": "", "destination": "domain" if self.by_domain else ""}.get(
            self.per, self.per
        )
        rate = RouteRate(
            self.mail, f"rate {self.name}", by, route=self.name, rate=self.rate, burst=self.burst
        )
        return *super().limits, rate

    @classmethod
    def shown_limits(cls) -> tuple[ShownLimit, ...]:
        """How commands show the limits: the rate, too."""
        return *super().shown_limits(), SHOWN

    def wrong_keys(self) -> Iterator[tuple[str, str]]:
        """Yield keys that do not fit together, and the reasons."""
        yield from super().wrong_keys()
        if self.rate is None:
            for key in ("burst", "per"):
                if key in self.model_fields_set:
                    yield key, "needs a rate"
        elif self.name is None:
            yield "rate", "needs a name of the route: its budgets are known by it"
