"""How much mail may go to a destination at most, and which keys say so (pure)."""

from __future__ import annotations

from typing import Any

from queued.config import Delivery
from queued.routing.routes import Routed

_CONNECTIONS = "delivery.connections of queued.yaml"


def ceiling(delivery: Delivery, routed: Routed) -> dict[str, Any]:
    """Return the ceilings of a route: connections of each worker, and the rate over all workers.

    `shown` is both in one text, and each number has the key that sets it.
    """
    rate = next(iter(routed.claims_on), None)
    default = "" if "connections" in delivery.model_fields_set else ", its default"
    times = f" \N{MULTIPLICATION SIGN} {rate.shown}" if rate else ""
    return {
        "route": routed.route,
        "shown": f"{delivery.connections}{times}",
        "connections": delivery.connections,
        "connections_by": f"{_CONNECTIONS}{default}",
        "rate": rate.rate if rate else None,
        "burst": rate.burst if rate else None,
        "per": rate.rated.by or None if rate else None,
        "rate_by": f"{routed.key}.rate of shaping.yaml" if rate else None,
    }
